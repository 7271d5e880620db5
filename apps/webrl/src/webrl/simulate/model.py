"""What a simulation assumes: every number, its unit and its meaning.

All can be set from the command line as `model.section.key=value`; a report lists them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from webrl.config import Count, NonNegative, Positive, Section


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeModel(Section):
    """How long episodes are and how long their steps take outside of the server."""

    success_share: Annotated[float, Meta(gt=0, lt=1), "Try 0.4."] = 0.42
    """Mean probability that an episode succeeds."""
    success_concentration: Annotated[Positive, "Typical: 0.6."] = 0.6
    """a + b of the Beta distribution of a task's success probability: small means that tasks are
    either always or never solved, so that more groups carry no gradient."""
    success_steps: Annotated[float, Meta(ge=1), "An episode needs one step."] = 5.1
    """Mean steps of a success."""
    failure_steps: Annotated[float, Meta(ge=1), "An episode needs one step."] = 12.5
    """Mean steps of a failure."""
    max_steps: Annotated[Count, "An episode needs one step."] = 30
    """Steps after which an episode ends; the configuration's `max_steps` unless set here."""
    step_s: Annotated[NonNegative, "Use 0 for none."] = 6.0
    """Mean seconds of a step outside of the server: page, browser, action."""
    step_cv: Annotated[NonNegative, "Use 0 for none."] = 1.0
    """Coefficient of variation of that, lognormal."""
    step_tokens: Annotated[Positive, "A step samples at least one token."] = 350.0
    """Mean sampled tokens of a step."""
    step_tokens_cv: Annotated[NonNegative, "Use 0 for none."] = 0.5
    """Coefficient of variation of that, lognormal."""
    reset_s: Annotated[NonNegative, "Use 0 for none."] = 5.0
    """Mean seconds until the first screenshot of an episode."""
    reset_cv: Annotated[NonNegative, "Use 0 for none."] = 1.0
    """Coefficient of variation of that, lognormal."""
    end_s: Annotated[NonNegative, "Use 0 for none."] = 0.0
    """Seconds after the last step, the judge's for example."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerModel(Section):
    """Speed of one inference server."""

    token_s: Annotated[Positive, "Typical: 0.009."] = 0.009
    """Seconds of one sampled token when nothing else runs on the server."""
    crowding: Annotated[NonNegative, "Use 0 for none."] = 0.02
    """Share by which each further running request slows all of them; 0 for none."""
    prefill_tokens: Annotated[NonNegative, "Use 0 for none."] = 60.0
    """Cost of reading one prompt with its image, in sampled tokens."""
    max_running: Annotated[Count, "Typical: 48."] = 48
    """Requests that run at once; the configuration's unless set here."""
    is_sticky: bool = True
    """An episode stays on the server that had the fewest at its start, as `webrl` routes it; otherwise
    every request goes to the server that has the fewest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerModel(Section):
    """Seconds of one update."""

    row_s: Annotated[NonNegative, "Use 0 for none."] = 2.9
    """Device seconds of one training row, that is of one step of an episode; divided by the ranks.
    3,500 tokens, 8e9 parameters, 26 operations each (log-probs once; three epochs forward, backward
    and recomputed) at a quarter of an H100's 989e12 a second."""
    fixed_s: Annotated[NonNegative, "Use 0 for none."] = 10.0
    """Seconds of an update whatever its size: rows, screenshots, optimizer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishModel(Section):
    """Seconds of one weight update of the servers."""

    window_s: Annotated[NonNegative, "Use 0 for none."] = 3.0
    """Seconds in which generation stands still."""
    outside_s: Annotated[NonNegative, "Use 0 for none."] = 0.0
    """Seconds that the trainer needs besides, with generation going on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionModel(Section):
    """Browser sessions and the way to a worker and back."""

    open_s: Annotated[NonNegative, "Use 0 for none."] = 10.0
    """Seconds to start one browser session."""
    opens_at_once: Annotated[Count, "One at least."] = 8
    """Sessions that one worker starts at the same time."""
    dispatch_s: Annotated[NonNegative, "Use 0 for none."] = 0.02
    """Seconds from an episode's end to the start of the next one in its slot, when one may start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SynchronousModel(Section):
    """The synchronous system that is compared with."""

    round_episodes: Annotated[Count, "Leave it out for the batch size."] | None = None
    """Episodes of one round; `rollout.consumer_batch_size` when unset."""
    switch_s: Annotated[NonNegative, "Use 0 for none."] = 0.0
    """Seconds to change devices between generating and training, both ways together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationModel(Section):
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
