"""What a simulation measures of itself, and the figures that follow.

Invariant: figures cover the steps after the warm-up only: the first `eta + 2` steps fill an empty
pipeline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One training step, in virtual seconds since the start."""

    started_s: float
    collected_s: float
    """The batch is there."""
    trained_s: float
    """The update is done; the servers are held from now on."""
    resumed_s: float
    """Generation goes on."""
    ended_s: float
    num_rows: int
    """Training rows, that is steps of episodes."""
    num_episodes: int
    """Episodes that were trained on."""
    queue_s: tuple[float, ...]
    """Of each of them: seconds between its end and its batch."""
    num_ended: int
    """Episodes of complete groups since the start, as a run counts them."""
    busy_s: float
    """Slot seconds inside episodes since the start."""
    server_busy_s: float
    """Server seconds with requests since the start."""
    request_s: float
    """Server seconds times running requests since the start."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """One look at the whole, for the picture and for the bound that binds."""

    at_s: float
    num_episodes: int
    """Running ones."""
    num_requests: int
    """Running ones on all servers."""
    num_ready: int
    """Episodes of complete groups that wait for the trainer."""
    bound: str
    """What keeps a further episode from starting; `nothing` when one may."""


@dataclass(slots=True)
class Recording:
    """Everything that one mode left."""

    mode: str
    num_slots: int
    num_servers: int
    num_ranks: int
    num_warmup: int
    """Steps that the figures leave out."""
    steps: list[StepTimes] = field(default_factory=list[StepTimes])
    gauges: list[Gauge] = field(default_factory=list[Gauge])
    off_policyness: Mapping[int, int] = field(default_factory=dict[int, int])
    in_flight_age: Mapping[int, int] = field(default_factory=dict[int, int])
    in_queue_age: Mapping[int, int] = field(default_factory=dict[int, int])
    wasted: Mapping[str, int] = field(default_factory=dict[str, int])
    """Episodes that ran and were not trained on, by reason."""
    num_trained: int = 0

    def figures(self) -> ModeFigures:
        """Return the figures over the steps after the warm-up."""
        first, last = self.steps[self.num_warmup - 1], self.steps[-1]
        counted = self.steps[self.num_warmup :]
        seconds = last.ended_s - first.ended_s
        slots_s = self.num_slots * seconds
        waits = sorted(wait for step in counted for wait in step.queue_s)
        ages = self.off_policyness
        total = sum(ages.values())
        return ModeFigures(
            mode=self.mode,
            num_steps=len(counted),
            seconds=seconds,
            step_s=seconds / len(counted),
            collect_s=_mean([step.collected_s - step.started_s for step in counted]),
            train_s=_mean([step.trained_s - step.collected_s for step in counted]),
            rollout_s=_mean(_rollout_times(self.mode, counted)),
            episodes_per_h=3600.0 * (last.num_ended - first.num_ended) / seconds,
            trained_per_h=3600.0 * sum(step.num_episodes for step in counted) / seconds,
            rows_per_h=3600.0 * sum(step.num_rows for step in counted) / seconds,
            running_episodes=(last.busy_s - first.busy_s) / seconds,
            slots_idle=max(0.0, 1.0 - (last.busy_s - first.busy_s) / slots_s),
            servers_idle=1.0
            - (last.server_busy_s - first.server_busy_s) / (self.num_servers * seconds),
            requests_per_server=(last.request_s - first.request_s) / (self.num_servers * seconds),
            trainer_idle=1.0 - sum(step.trained_s - step.collected_s for step in counted) / seconds,
            window_share=sum(step.resumed_s - step.trained_s for step in counted) / seconds,
            queue_s=_mean(waits),
            queue_p95_s=waits[int(0.95 * (len(waits) - 1))] if waits else 0.0,
            off_policyness=dict(sorted(ages.items())),
            mean_off_policyness=sum(age * n for age, n in ages.items()) / total if total else 0.0,
            in_flight_age=dict(sorted(self.in_flight_age.items())),
            in_queue_age=dict(sorted(self.in_queue_age.items())),
            wasted_share=sum(self.wasted.values())
            / max(1, sum(self.wasted.values()) + self.num_trained),
            wasted=dict(self.wasted),
            bounds=_shares([gauge.bound for gauge in self.gauges if gauge.at_s > first.ended_s]),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ModeFigures:
    """Figures of one mode; times in seconds, shares from 0 to 1."""

    mode: str
    num_steps: int
    """Steps counted."""
    seconds: float
    """Their time."""
    step_s: float
    """Of one step."""
    collect_s: float
    """Of a step: the trainer waits for its batch."""
    train_s: float
    """Of a step: the update."""
    rollout_s: float
    """Time to collect one batch if the trainer took none: a step without what only it does."""
    episodes_per_h: float
    """Episodes that ended, rejected ones included."""
    trained_per_h: float
    """Episodes that were trained on."""
    rows_per_h: float
    """Training rows."""
    running_episodes: float
    """Mean over time."""
    slots_idle: float
    """Share of slot time without an episode."""
    servers_idle: float
    """Share of server time without a request."""
    requests_per_server: float
    """Running ones, mean over time and servers."""
    trainer_idle: float
    """Share of time in which the trainer computed nothing."""
    window_share: float
    """Share of time in which a weight update held generation back."""
    queue_s: float
    """Mean time between an episode's end and its batch."""
    queue_p95_s: float
    """The 95th percentile of that."""
    off_policyness: dict[int, int]
    """Versions behind at consumption -> episodes."""
    mean_off_policyness: float
    in_flight_age: dict[int, int]
    """Versions that passed while it ran -> episodes."""
    in_queue_age: dict[int, int]
    """Versions that passed while it waited -> episodes."""
    wasted_share: float
    """Share of the episodes that ran and were not trained on."""
    wasted: dict[str, int]
    """Those by reason."""
    bounds: dict[str, float]
    """What kept a further episode from starting -> share of time."""

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as plain JSON types."""
        return asdict(self)


def _rollout_times(mode: str, steps: Sequence[StepTimes]) -> list[float]:
    """Return how long each batch took to generate: overlapped with training, or before it."""
    if mode == "synchronous":
        return [step.collected_s - step.started_s for step in steps]
    return [step.ended_s - step.started_s for step in steps]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _shares(names: Sequence[str]) -> dict[str, float]:
    return {name: count / len(names) for name, count in Counter(names).most_common()}
