"""A circuit breaker over the share of faults. Pure.

Invariants: it opens only when its window is full and the share lies above the limit, so a few
faults at the start cannot stop a run; once open it stays open.
"""

from __future__ import annotations

from collections import Counter, deque

from awrl_rollout.episode import Fault, FaultKind
from awrl_rollout.errors import StarvedError

NOT_COUNTED: frozenset[FaultKind] = frozenset({FaultKind.CANCELLED, FaultKind.WORKER_LOST})
"""Ours, not the environment's: cancelled on request, or one dead worker that took many along."""

TEXT_LENGTH = 400
"""Characters of a fault's message that an error repeats."""


class FaultBreaker:
    """Watches how the last episodes ended.

    Args:
        max_share: Largest share of faults; None never opens.
    """

    def __init__(self, *, max_share: float | None, window: int) -> None:
        self._max_share = max_share
        self._window = window
        self._last: deque[FaultKind | None] = deque(maxlen=window)
        self._num_faults = 0
        self._opened: str | None = None
        self._texts: dict[FaultKind, str] = {}
        """The last message of each kind."""

    @property
    def is_open(self) -> bool:
        """Whether the run has to stop."""
        return self._opened is not None

    def note(self, fault: Fault | None) -> None:
        """Count one episode's end."""
        kind = None if fault is None else fault.kind
        if kind in NOT_COUNTED:
            return
        if fault is not None:
            self._texts[fault.kind] = fault.message.strip().partition("\n")[0][:TEXT_LENGTH]
        if len(self._last) == self._window and self._last[0] is not None:
            self._num_faults -= 1
        self._last.append(kind)
        self._num_faults += kind is not None
        is_full = len(self._last) == self._window
        if self._max_share is None or self._opened is not None or not is_full:
            return
        if self._num_faults > self._max_share * self._window:
            kinds = Counter(item for item in self._last if item is not None).most_common()
            listed = ", ".join(f"{kind.value} {count}" for kind, count in kinds)
            told = (f"\n  the last {kind.value}: {self._texts[kind]}" for kind, _ in kinds)
            self._opened = (
                f"share of faults must be at most {self._max_share} over {self._window} "
                f"episodes, got {self._num_faults / self._window:.2f} ({listed}). Mend the most "
                f"frequent kind, or raise max_fault_share.{''.join(told)}"
            )

    def check(self) -> None:
        """Raise when the breaker is open.

        Raises:
            StarvedError: The share stayed above its limit.
        """
        if self._opened is not None:
            raise StarvedError(self._opened)
