"""What a simulation assumes: every number, its unit and its meaning.

All can be set from the command line as `model.section.key=value`; a report lists them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from webrl.config.rules import Rules

__all__ = [
    "EpisodeModel",
    "PublishModel",
    "ServerModel",
    "SessionModel",
    "SimulationModel",
    "SynchronousModel",
    "TrainerModel",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeModel:
    """How long episodes are and how long their steps take outside of the server."""

    success_share: float = 0.42
    """Mean probability that an episode succeeds."""
    success_concentration: float = 0.6
    """a + b of the Beta distribution of a task's success probability: small means that tasks are
    either always or never solved, so that more groups carry no gradient."""
    success_steps: float = 5.1
    """Mean steps of a success."""
    failure_steps: float = 12.5
    """Mean steps of a failure."""
    max_steps: int = 30
    """Steps after which an episode ends; the configuration's `max_steps` unless set here."""
    step_s: float = 6.0
    """Mean seconds of a step outside of the server: page, browser, action."""
    step_cv: float = 1.0
    """Coefficient of variation of that, lognormal."""
    step_tokens: float = 350.0
    """Mean sampled tokens of a step."""
    step_tokens_cv: float = 0.5
    """Coefficient of variation of that, lognormal."""
    reset_s: float = 5.0
    """Mean seconds until the first screenshot of an episode."""
    reset_cv: float = 1.0
    """Coefficient of variation of that, lognormal."""
    end_s: float = 0.0
    """Seconds after the last step, the judge's for example."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value is out of its range.
        """
        rules = Rules()
        rules.require(
            0 < self.success_share < 1, "success_share", "in (0, 1)", self.success_share, "Try 0.4."
        )
        rules.above("success_concentration", self.success_concentration, 0, "Typical: 0.6.")
        rules.at_least("max_steps", self.max_steps, 1, "An episode needs one step.")
        for name in ("success_steps", "failure_steps"):
            rules.at_least(name, getattr(self, name), 1, "An episode needs one step.")
        for name in ("step_s", "step_cv", "step_tokens_cv", "reset_s", "reset_cv", "end_s"):
            rules.at_least(name, getattr(self, name), 0, "Use 0 for none.")
        rules.above("step_tokens", self.step_tokens, 0, "A step samples at least one token.")
        rules.finish()


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerModel:
    """Speed of one inference server."""

    token_s: float = 0.009
    """Seconds of one sampled token when nothing else runs on the server."""
    crowding: float = 0.02
    """Share by which each further running request slows all of them; 0 for none."""
    prefill_tokens: float = 60.0
    """Cost of reading one prompt with its image, in sampled tokens."""
    max_running: int = 48
    """Requests that run at once; the configuration's unless set here."""
    is_sticky: bool = True
    """An episode stays on one server, as `webrl` routes it; otherwise every request goes to the
    server that has the fewest."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value is out of its range.
        """
        rules = Rules()
        rules.above("token_s", self.token_s, 0, "Typical: 0.009.")
        rules.at_least("crowding", self.crowding, 0, "Use 0 for none.")
        rules.at_least("prefill_tokens", self.prefill_tokens, 0, "Use 0 for none.")
        rules.at_least("max_running", self.max_running, 1, "Typical: 48.")
        rules.finish()


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerModel:
    """Seconds of one update."""

    row_s: float = 2.9
    """Device seconds of one training row, that is of one step of an episode; divided by the ranks.
    3,500 tokens, 8e9 parameters, 26 operations each (log-probs once; three epochs forward, backward
    and recomputed) at a quarter of an H100's 989e12 a second."""
    fixed_s: float = 10.0
    """Seconds of an update whatever its size: rows, screenshots, optimizer."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value is out of its range.
        """
        rules = Rules()
        rules.at_least("row_s", self.row_s, 0, "Use 0 for none.")
        rules.at_least("fixed_s", self.fixed_s, 0, "Use 0 for none.")
        rules.finish()


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishModel:
    """Seconds of one weight update of the servers."""

    window_s: float = 3.0
    """Seconds in which generation stands still."""
    outside_s: float = 0.0
    """Seconds that the trainer needs besides, with generation going on."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value is out of its range.
        """
        rules = Rules()
        rules.at_least("window_s", self.window_s, 0, "Use 0 for none.")
        rules.at_least("outside_s", self.outside_s, 0, "Use 0 for none.")
        rules.finish()


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionModel:
    """Browser sessions and the way to a worker and back."""

    open_s: float = 10.0
    """Seconds to start one browser session."""
    opens_at_once: int = 8
    """Sessions that one worker starts at the same time."""
    dispatch_s: float = 0.02
    """Seconds from an episode's end to the start of the next one in its slot, when one may start."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value is out of its range.
        """
        rules = Rules()
        rules.at_least("open_s", self.open_s, 0, "Use 0 for none.")
        rules.at_least("opens_at_once", self.opens_at_once, 1, "One at least.")
        rules.at_least("dispatch_s", self.dispatch_s, 0, "Use 0 for none.")
        rules.finish()


@dataclass(frozen=True, kw_only=True, slots=True)
class SynchronousModel:
    """The synchronous system that is compared with."""

    round_episodes: int | None = None
    """Episodes of one round; `rollout.consumer_batch_size` when unset."""
    switch_s: float = 0.0
    """Seconds to change devices between generating and training, both ways together."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value is out of its range.
        """
        rules = Rules()
        rules.at_least("round_episodes", self.round_episodes, 1, "Leave it out for the batch size.")
        rules.at_least("switch_s", self.switch_s, 0, "Use 0 for none.")
        rules.finish()


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationModel:
    """All assumptions of one simulation. The defaults describe an 8B policy on H100 devices."""

    episode: EpisodeModel = field(default_factory=EpisodeModel)
    """Lengths and latencies of episodes."""
    server: ServerModel = field(default_factory=ServerModel)
    """Inference servers."""
    trainer: TrainerModel = field(default_factory=TrainerModel)
    """The update engine."""
    publish: PublishModel = field(default_factory=PublishModel)
    """Weight updates."""
    session: SessionModel = field(default_factory=SessionModel)
    """Browser sessions and dispatch."""
    synchronous: SynchronousModel = field(default_factory=SynchronousModel)
    """What differs in the synchronous system."""
