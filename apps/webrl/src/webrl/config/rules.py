"""The rules that configuration values obey, collected so that all breaches are reported together.

A section's `__post_init__` makes one `Rules`, states its rules, and calls `finish`.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from webrl.errors import ConfigError, Problem

__all__ = ["Rules"]


def _number(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else repr(bound)


def _show(value: object) -> str:
    return repr(value) if isinstance(value, str) else str(value)


class Rules:
    """Collects what is wrong with one section."""

    def __init__(self) -> None:
        """Start with nothing wrong."""
        self.problems: list[Problem] = []

    def require(self, holds: bool, key: str, rule: str, value: object, fix: str) -> None:
        """Note `key must be <rule>, got <value>. <fix>` unless it holds."""
        if not holds:
            message = f"must be {rule}, got {_show(value)}. {fix}"
            self.problems.append(Problem(key=key, message=message))

    def at_least(self, key: str, value: float | None, bound: float, fix: str) -> None:
        """`value` is `None` or a finite number >= bound."""
        holds = value is None or (math.isfinite(value) and value >= bound)
        self.require(holds, key, f">= {_number(bound)}", value, fix)

    def above(self, key: str, value: float | None, bound: float, fix: str) -> None:
        """`value` is `None` or a finite number > bound."""
        holds = value is None or (math.isfinite(value) and value > bound)
        self.require(holds, key, f"> {_number(bound)}", value, fix)

    def within(self, key: str, value: float | None, low: float, high: float, fix: str) -> None:
        """`value` is `None` or lies in [low, high]."""
        holds = value is None or low <= value <= high
        self.require(holds, key, f"between {_number(low)} and {_number(high)}", value, fix)

    def one_of(self, key: str, value: str, allowed: Collection[str], fix: str = "") -> None:
        """`value` is one of `allowed`."""
        names = ", ".join(repr(name) for name in allowed)
        self.require(value in allowed, key, f"one of {names}", value, fix or "Pick one of these.")

    def not_blank(self, key: str, value: str, fix: str) -> None:
        """`value` holds something else than blanks."""
        self.require(bool(value.strip()), key, "a non-empty text", value, fix)

    def finish(self) -> None:
        """Raise what was noted.

        Raises:
            ConfigError: at least one rule is broken.
        """
        if self.problems:
            raise ConfigError(self.problems)
