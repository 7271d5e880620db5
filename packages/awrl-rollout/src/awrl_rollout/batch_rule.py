"""When a batch closes: full, short, over its wait, or never. No waiting here.

Invariants:
* a batch closes full as soon as enough groups are ready (under `wait`, once no open group would
  expire with the next version);
* it closes short only when nothing runs and no further group fits the staleness budget, so that
  group sizes that do not divide the batch cannot starve it;
* a batch that can never fill is an error that says why, never a silent wait.
"""

from __future__ import annotations

from awrl_staleness import STALENESS

from awrl_rollout.batch import RolloutBatch
from awrl_rollout.clock import Clock
from awrl_rollout.controller_config import ControllerConfig
from awrl_rollout.errors import DataExhaustedError, StarvedError
from awrl_rollout.parts import ControllerParts


class BatchRule:
    """Decides for one controller.

    Args:
        parts: Its parts.
        config: Its limits.
        clock: Source of time.
    """

    def __init__(self, parts: ControllerParts, config: ControllerConfig, clock: Clock) -> None:
        self._parts = parts
        self._config = config
        self._clock = clock
        self._stuck_since_s: float | None = None
        self._overrun: tuple[int, float] | None = None

    def try_batch(self, num_episodes: int) -> RolloutBatch | None:
        """Return a batch that may close now, else None; the caller has just tried to admit.

        Raises:
            FaultShareError: The breaker is open.
            DataExhaustedError: The source is over and the batch cannot fill.
            StarvedError: Nothing runs, nothing may start, and nothing will change that.
        """
        parts = self._parts
        parts.breaker.check()
        if parts.assembly.ready.num_episodes >= num_episodes:
            self._stuck_since_s = None
            if self._must_wait_for_overrun():
                return None
            return parts.assembly.take(num_episodes, is_short=False)
        has_workers = bool(parts.fleet.live)
        is_moving = parts.fleet.num_training > 0 or (bool(parts.book.pending) and has_workers)
        if is_moving or parts.admission.is_paused:
            self._stuck_since_s = None
            return None
        if not parts.admission.has_more and not parts.book.num_open:
            raise DataExhaustedError(
                f"a batch of {num_episodes} must fill from the task source, got "
                f"{parts.assembly.ready.num_episodes} and no further group: data exhausted. Use "
                "an endless source, or take what is ready with a smaller batch."
            )
        return self._when_stuck(num_episodes)

    def _when_stuck(self, num_episodes: int) -> RolloutBatch | None:
        parts, now_s = self._parts, self._clock.time()
        if parts.admission.blocked_by == STALENESS and len(parts.assembly.ready):
            self._stuck_since_s = None
            return parts.assembly.take(num_episodes, is_short=True)
        if self._stuck_since_s is None:
            self._stuck_since_s = now_s
        is_patient = now_s - self._stuck_since_s < self._config.starved_after_s
        waits_for_publish = bool(parts.assembly.in_training) and bool(parts.fleet.live)
        if is_patient or waits_for_publish:
            return None
        raise StarvedError(
            f"a batch of {num_episodes} must be able to fill, got nothing running for "
            f"{self._config.starved_after_s} s: {parts.describe()}. Free what the refusing bound "
            "counts, or add a worker."
        )

    def _must_wait_for_overrun(self) -> bool:
        if self._config.on_overrun == "drop":
            return False
        version = self._parts.manager.version
        last_chance = version - self._parts.manager.config.max_off_policyness
        if not self._parts.book.has_group_as_old_as(last_chance):
            return False
        now_s = self._clock.time()
        if self._overrun is None or self._overrun[0] != version:
            self._overrun = (version, now_s)
        return now_s - self._overrun[1] < self._config.overrun_deadline_s


def check_num_episodes(num_episodes: int) -> None:
    """Raise unless a batch holds at least one episode.

    Raises:
        ValueError: It holds none.
    """
    if num_episodes < 1:
        raise ValueError(
            f"num_episodes must be at least 1, got {num_episodes}. Count in episodes, not groups."
        )
