"""`ResumeCursor`: which positions of a task stream still have to be done after a resume.

Invariants: a position that was trained on *or dropped* is done; only positions that were issued and
are not done come again, first and in their order; nothing is done twice or skipped.
"""

from __future__ import annotations

import msgspec

from awrl_staleness.errors import UnknownEpisodeError


class CursorSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A cursor as plain data."""

    next_position: int
    """First position that was never issued."""
    outstanding: tuple[int, ...]
    """Issued and not done, ascending."""


class ResumeCursor:
    """Issues the positions of an endless stream of tasks.

    Args:
        snapshot: Where an earlier run stood; None starts at 0.
    """

    def __init__(self, snapshot: CursorSnapshot | None = None) -> None:
        self._next = 0 if snapshot is None else snapshot.next_position
        self._again = [] if snapshot is None else sorted(snapshot.outstanding, reverse=True)
        self._issued: set[int] = set()

    @property
    def resume_position(self) -> int:
        """The first position that is not done."""
        return min(self._outstanding(), default=self._next)

    def issue(self) -> int:
        """Return the next position to do; after a resume the outstanding ones come first."""
        if self._again:
            position = self._again.pop()
        else:
            position = self._next
            self._next += 1
        self._issued.add(position)
        return position

    def done(self, position: int) -> None:
        """Note that a position was trained on, dropped or rejected.

        Raises:
            UnknownEpisodeError: It is not issued, or it was done before.
        """
        if position not in self._issued:
            raise UnknownEpisodeError(
                f"position must be issued and not done, got {position}. Each is done once."
            )
        self._issued.discard(position)

    def snapshot(self) -> CursorSnapshot:
        """Return what a checkpoint has to hold."""
        return CursorSnapshot(
            next_position=self._next, outstanding=tuple(sorted(self._outstanding()))
        )

    def _outstanding(self) -> set[int]:
        return self._issued.union(self._again)
