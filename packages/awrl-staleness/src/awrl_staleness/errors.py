"""The error of `awrl_staleness`: one, since every cause is a mistake of the caller's program."""

from __future__ import annotations


class StalenessError(ValueError):
    """A number, an id or the order of events breaks a stated rule; nothing was changed.

    Not raised when a bound leaves no room: the `try_` methods answer False.
    """
