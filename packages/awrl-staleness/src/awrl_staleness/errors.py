"""Errors of `awrl_staleness`.

StalenessError
|-- ConfigError (ValueError)             an argument or a config value breaks a stated rule
|-- UnknownEpisodeError (LookupError)    no live episode, group or batch has this id
|-- DuplicateEpisodeError (ValueError)   a live episode or group already has this id
|-- IllegalTransitionError (RuntimeError)  the transition table has no such event here
|-- CapacityExceededError (RuntimeError) a start that no bound leaves room for
`-- GateClosedError (RuntimeError)       the admission gate was closed
"""

from __future__ import annotations


class StalenessError(Exception):
    """Root of every error that this package raises."""


class ConfigError(StalenessError, ValueError):
    """A value breaks a stated rule. Not raised for events that come in the wrong order."""


class UnknownEpisodeError(StalenessError, LookupError):
    """No live entry has this id: it never existed, or it has ended. Not raised for live ids."""


class DuplicateEpisodeError(StalenessError, ValueError):
    """The id is in use by a live entry. Not raised once that entry has ended."""


class IllegalTransitionError(StalenessError, RuntimeError):
    """The event is not allowed in this state; nothing was changed."""


class CapacityExceededError(StalenessError, RuntimeError):
    """A start was asked for while a bound leaves no room; nothing was changed.

    Not raised by the `try_` twins, which answer False.
    """


class GateClosedError(StalenessError, RuntimeError):
    """The gate was closed before or during the wait. Not raised by `release` or `aclose`."""
