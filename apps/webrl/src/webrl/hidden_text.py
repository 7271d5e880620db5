"""A text that logs show as stars."""

from __future__ import annotations

__all__ = ["HiddenText"]


class HiddenText(str):
    """A secret among settings that somebody else writes into a log with `repr`."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return stars, however long the text is."""
        return "'***'"
