"""Stand-ins for environments: sessions that follow a script, and durations with a heavy tail.

Invariant: what happens at which step is scripted, so the same request meets the same session in
every pool that runs it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import msgspec

from awrl_rollout.clock import Clock
from awrl_rollout.episode import EpisodeRequest
from awrl_rollout.errors import ClosedError, EpisodeFaultError
from awrl_rollout.faults import FaultKind


class ScriptedStep(msgspec.Struct, frozen=True, kw_only=True):
    """What one action meets."""

    duration_s: float = 0.0
    """Seconds until the environment answers."""
    observation: str = ""
    """The answer, for example a screenshot's key."""
    fault: FaultKind | None = None
    """Raised in place of the answer."""


class ScriptedSession:
    """An environment session that answers each action as the script says.

    Args:
        script: One step per action.
        clock: Source of time.

    Attributes:
        actions: Every action so far.
        is_closed: Whether `aclose` was called.
    """

    def __init__(self, script: Sequence[ScriptedStep], *, clock: Clock) -> None:
        self.actions: list[object] = []
        self.is_closed = False
        self._script = script
        self._clock = clock

    @property
    def is_over(self) -> bool:
        """Whether the script has no further step."""
        return len(self.actions) >= len(self._script)

    async def act(self, action: object) -> str:
        """Return the observation that follows an action.

        Raises:
            EpisodeFaultError: The script says so.
            ClosedError: The session is closed or its script is over.
        """
        if self.is_closed or self.is_over:
            raise ClosedError("session must be open and not over, got an action. Make a new one.")
        step = self._script[len(self.actions)]
        self.actions.append(action)
        await self._clock.sleep(step.duration_s)
        if step.fault is not None:
            raise EpisodeFaultError(step.fault, "as scripted", boundary="session")
        return step.observation

    async def aclose(self) -> None:
        """Refuse further actions; harmless if repeated."""
        self.is_closed = True


def lognormal_durations(
    *, mean_s: float, cv: float, seed: int = 0
) -> Callable[[EpisodeRequest], float]:
    """Return a lognormal duration per episode id, the same in every pool that runs it.

    Args:
        mean_s: Mean, in seconds.
        cv: Standard deviation over mean; 1 is the heavy tail of web episodes.
        seed: Seed of the whole assignment.
    """
    variance = math.log(1.0 + cv * cv)
    mu, sigma = math.log(mean_s) - variance / 2.0, math.sqrt(variance)

    def duration_s(request: EpisodeRequest) -> float:
        return random.Random(f"{seed}/{request.episode_id}").lognormvariate(mu, sigma)

    return duration_s
