"""What travels between controller and workers: a request for one episode, its record, its fault.

Invariants:
* a record answers exactly one request and carries its id, group, member and attempt;
* a fault says why an episode ended without saying anything about the policy: it is typed, names the
  boundary that saw it, and carries no reward.

Payloads are opaque: this package never looks inside.
"""

from __future__ import annotations

import enum
import math

import msgspec


class FaultKind(enum.Enum):
    """What broke; the closed set that statistics, refills and the breaker go by."""

    SITE_BLOCKED = "site_blocked"
    """The site shuts the agent out."""
    ADDRESS_REFUSED = "address_refused"
    """The site is at an address that must not be reached."""
    NAME_NOT_RESOLVED = "name_not_resolved"
    """There is no site of that name."""
    CONNECTION_REFUSED = "connection_refused"
    """Nothing listens at the site's address."""
    BAD_CERTIFICATE = "bad_certificate"
    """The site's certificate is not to be trusted."""
    NO_PAGE = "no_page"
    """The site gives something else than a page: a download, or `not found`."""
    DEADLY_PAGE = "deadly_page"
    """The site's page ended browser after browser."""
    NAVIGATION_ERROR = "navigation_error"
    """The site is slow, overloaded, or ends the connection; it may do better later."""
    PAGE_ERROR = "page_error"
    """The site's page is not as the task needs it."""
    NETWORK_DOWN = "network_down"
    """No way out of this machine: not even names are resolved."""
    BROWSER_LOST = "browser_lost"
    TIMEOUT = "timeout"
    JUDGE_ERROR = "judge_error"
    GENERATION_ERROR = "generation_error"
    WORKER_LOST = "worker_lost"
    WORKFLOW_ERROR = "workflow_error"
    CANCELLED = "cancelled"
    """Ended on purpose; nothing broke."""

    @property
    def is_permanent(self) -> bool:
        """Whether another run would end the same way: it is not refilled, nor are its siblings."""
        return self in _PERMANENT

    @property
    def is_of_site(self) -> bool:
        """Whether the site brought it about, and not the infrastructure."""
        return self in _PERMANENT or self in (FaultKind.NAVIGATION_ERROR, FaultKind.PAGE_ERROR)


_PERMANENT = frozenset(
    {
        FaultKind.SITE_BLOCKED,
        FaultKind.ADDRESS_REFUSED,
        FaultKind.NAME_NOT_RESOLVED,
        FaultKind.CONNECTION_REFUSED,
        FaultKind.BAD_CERTIFICATE,
        FaultKind.NO_PAGE,
        FaultKind.DEADLY_PAGE,
    }
)


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault, as recorded with its episode."""

    kind: FaultKind
    """What broke."""
    boundary: str
    """Which named boundary saw it, for example `executor` or `worker`."""
    message: str
    """The exception's text or a sentence."""
    error_type: str = ""
    """Class name of the exception, or empty when there was none."""
    num_attempts: int = 1
    """How often the executor ran the episode before it gave up."""

    def describe(self) -> str:
        """Return the fault as one short sentence for logs and statistics."""
        error = f"{self.error_type}: " if self.error_type else ""
        return f"{self.kind.value} at {self.boundary}: {error}{self.message}"


class Outcome(enum.Enum):
    """How an episode ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    FAULT = "fault"
    """The infrastructure broke; says nothing about the policy."""
    REJECTED = "rejected"
    """The workflow answered None: it filtered the episode out."""


class EpisodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One episode to run."""

    episode_id: str
    """Unique over the run; a refill gets an id of its own."""
    group_id: str
    """Siblings share it; advantages are normalised within it."""
    member: int = 0
    """Place in the group, 0 to `group_size - 1`; a refill keeps the place."""
    group_size: int = 1
    """Members that were asked for."""
    payload: object = None
    """The task; opaque."""
    attempt: int = 0
    """How many earlier requests for this member were lost to faults."""
    label: str | None = None
    """Caller's label for waste statistics, for example the difficulty."""
    site: str = ""
    """Where it runs, for example a host name: faults are told apart by it. Empty for nowhere else."""
    weight_version: int = 0
    """Version published when the episode was admitted."""


class EpisodeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a workflow returns for an episode that ran to its end.

    Raises:
        ValueError: A reward is not a finite number, or a version not a whole one.
    """

    is_success: bool
    payload: object = None
    """The trajectory; opaque."""
    reward: float | None = None
    oldest_version: int | None = None
    """Weight version of the oldest trainable token; None when the workflow does not know."""
    newest_version: int | None = None

    def __post_init__(self) -> None:
        """Check what training computes with."""
        _check_numbers(self)


class EpisodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The one terminal record of one request.

    Raises:
        ValueError: A reward is not a finite number, a version not a whole one, or the fault does not
            belong to the outcome.
    """

    episode_id: str
    group_id: str
    member: int = 0
    attempt: int = 0
    label: str | None = None
    site: str = ""
    """As requested."""
    outcome: Outcome
    payload: object = None
    """The trajectory; None after a fault."""
    reward: float | None = None
    oldest_version: int | None = None
    """Weight version of the oldest trainable token; None when unknown."""
    newest_version: int | None = None
    fault: Fault | None = None
    """Set iff the outcome is `FAULT`."""
    num_attempts: int = 1
    """How often the executor ran the workflow."""
    worker: str = ""
    """Name of the worker that ran it."""
    started_s: float = 0.0
    """Seconds on the clock of the worker's executor."""
    ended_s: float = 0.0
    slot: int | None = None
    """Index of the worker's slot that ran it; None for what never had one."""

    def __post_init__(self) -> None:
        """Check what the controller decides and training computes with."""
        _check_numbers(self)
        if (self.outcome is Outcome.FAULT) != isinstance(self.fault, Fault):
            raise ValueError(
                f"fault must be given with the outcome FAULT and with no other, got {self.fault!r} "
                f"with {self.outcome!r}. Use record_of."
            )

    @property
    def has_ended_well(self) -> bool:
        """Whether the record says something about the policy."""
        return self.outcome in (Outcome.SUCCESS, Outcome.FAILURE)


def _check_numbers(item: EpisodeResult | EpisodeRecord) -> None:
    if item.reward is not None and not math.isfinite(item.reward):
        raise ValueError(f"reward must be a finite number, got {item.reward!r}. Use None for none.")
    for name in ("oldest_version", "newest_version"):
        version = getattr(item, name)
        if version is not None and type(version) is not int:
            raise ValueError(f"{name} must be a whole number, got {version!r}. Use None for none.")


def record_of(
    request: EpisodeRequest,
    answer: EpisodeResult | Fault | None,
    *,
    worker: str = "",
    num_attempts: int = 1,
    started_s: float = 0.0,
    ended_s: float = 0.0,
    slot: int | None = None,
) -> EpisodeRecord:
    """Return the record of an episode that ended with a result, a fault, or None: filtered out."""
    result = answer if isinstance(answer, EpisodeResult) else None
    outcome = Outcome.REJECTED
    if isinstance(answer, Fault):
        outcome = Outcome.FAULT
    elif result is not None:
        outcome = Outcome.SUCCESS if result.is_success else Outcome.FAILURE
    return EpisodeRecord(
        episode_id=request.episode_id,
        group_id=request.group_id,
        member=request.member,
        attempt=request.attempt,
        label=request.label,
        site=request.site,
        outcome=outcome,
        payload=None if result is None else result.payload,
        reward=None if result is None else result.reward,
        oldest_version=None if result is None else result.oldest_version,
        newest_version=None if result is None else result.newest_version,
        fault=answer if isinstance(answer, Fault) else None,
        num_attempts=num_attempts,
        worker=worker,
        started_s=started_s,
        ended_s=ended_s,
        slot=slot,
    )
