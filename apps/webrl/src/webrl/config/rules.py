"""What a key may hold: written once, at the field, and checked in one place.

A section of the configuration is a frozen dataclass over `Section`. The annotation of a field says
its type, its bounds and, as a plain text, what to do about a value outside of them:

    lr: Annotated[Positive, "Give a positive learning rate, such as 5e-6."] = 5e-6

Whoever makes a section, from a file or with `dataclasses.replace`, gets every breach in one
`ConfigError`, each as `key must be <rule>, got <value>. <remedy>`.
"""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from webrl.errors import ConfigError, Problem

Count = Annotated[int, Meta(ge=1)]
"""One or more."""
Natural = Annotated[int, Meta(ge=0)]
"""Zero or more."""
Positive = Annotated[float, Meta(gt=0)]
"""A number above zero; numbers with bounds are finite."""
NonNegative = Annotated[float, Meta(ge=0)]
"""A number, zero or more."""
Share = Annotated[float, Meta(ge=0, le=1)]
"""From nothing to all."""
Text = Annotated[str, Meta(pattern=r"\S")]
"""Something else than blanks."""


class Section:
    """Base of each section; a section that exists obeys its rules."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check every field, then what the fields say together.

        Raises:
            ConfigError: At least one rule is broken; keys are relative to the section.
        """
        problems: list[Problem] = []
        for name, hint in _rules_of(type(self)).items():
            if is_leaf(hint):
                try:
                    # A whole number that stands for a float becomes one.
                    object.__setattr__(self, name, converted(hint, getattr(self, name)))
                except ConfigError as error:
                    problems += [problem.under(name) for problem in error.problems]
        problems += self.contradictions()
        if problems:
            raise ConfigError(problems)

    def contradictions(self) -> list[Problem]:
        """Return what is wrong with fields of the right types, beyond the bounds of each one."""
        return []


@functools.cache
def _rules_of(section: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(section, include_extras=True)


def section_type(hint: Any) -> type[Section] | None:
    """Return the section behind a field that holds one or a list of them, None for a leaf."""
    if typing.get_origin(hint) is tuple:
        hint = typing.get_args(hint)[0]
    return hint if isinstance(hint, type) and issubclass(hint, Section) else None


def is_leaf(hint: Any) -> bool:
    """Return whether a field holds a value, neither a section nor a list of sections."""
    return section_type(hint) is None


def breach(key: str, rule: str, value: object, remedy: str) -> Problem:
    """Return the problem `key must be <rule>, got <value>. <remedy>`."""
    return Problem(key=key, message=f"must be {rule}, got {_shown(value)}. {remedy}".rstrip())


def converted(hint: Any, value: object) -> object:
    """Return `value` as the type of `hint`, within its bounds.

    Args:
        hint: Type of a leaf; without `Annotated` it has no bounds.
        value: Parsed TOML, or a Python value.

    Raises:
        ConfigError: The one problem, without a key.
    """
    bare, bounds, remedy = _parts(hint)
    try:
        result = msgspec.convert(value, hint)
        if not (bounds and isinstance(result, float) and not math.isfinite(result)):
            return result
    except msgspec.ValidationError:
        pass
    try:
        value = msgspec.convert(value, bare)
        rule = range_text(bounds)
    except msgspec.ValidationError:
        rule, remedy = _type_text(bare), ""
    raise ConfigError([breach("", rule, value, remedy)])


def _parts(hint: Any) -> tuple[Any, dict[str, Any], str]:
    """Return the bare type of a leaf, its bounds by name, and the remedy."""
    if _is_union(hint):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    if typing.get_origin(hint) is not Annotated:
        return hint, {}, ""
    bare, *notes = typing.get_args(hint)
    names = ("gt", "ge", "lt", "le", "pattern")
    metas = [note for note in notes if isinstance(note, Meta)]
    bounds = {
        name: getattr(meta, name)
        for meta in metas
        for name in names
        if getattr(meta, name) is not None
    }
    remedies = [note for note in notes if isinstance(note, str)]
    return bare, bounds, remedies[-1] if remedies else ""


def bounds_of(hint: Any) -> dict[str, Any]:
    """Return the bounds of a leaf by their names in `msgspec.Meta`."""
    return _parts(hint)[1]


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def range_text(bounds: Mapping[str, Any]) -> str:
    """Return the rule that bounds make: `> 0`, `between 1 and 100`, `in (0, 1]`; empty for none."""
    match bounds:
        case {"pattern": _}:
            return "a non-empty text"
        case {"ge": low, "le": high}:
            return f"between {_number(low)} and {_number(high)}"
        case {"ge": low, "lt": high}:
            return f"in [{_number(low)}, {_number(high)})"
        case {"gt": low, "le": high}:
            return f"in ({_number(low)}, {_number(high)}]"
        case {"gt": low, "lt": high}:
            return f"in ({_number(low)}, {_number(high)})"
        case _:
            signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
            return "".join(f"{signs[name]} {_number(bound)}" for name, bound in bounds.items())


def _type_text(bare: Any) -> str:
    if typing.get_origin(bare) is Literal:
        return "one of " + ", ".join(repr(name) for name in typing.get_args(bare))
    if typing.get_origin(bare) is tuple:
        return "a list of texts"
    names = {int: "a whole number", float: "a number", bool: "true or false"}
    return names.get(bare, "a text in quotes")


def _number(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else repr(bound)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "a table" if isinstance(value, Mapping) else repr(value)
