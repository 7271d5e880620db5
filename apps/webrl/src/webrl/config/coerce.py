"""Turns parsed TOML and `key=value` texts into typed sections, noting every problem on the way."""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union

from webrl.config.spelling import unknown_key
from webrl.errors import ConfigError, Problem

__all__ = ["OverrideText", "build_section"]


@dataclass(frozen=True, slots=True)
class OverrideText:
    """The right side of a `key=value` argument, not yet typed."""

    text: str
    """As written on the command line."""


class _Mismatch(Exception):
    """A value has the wrong type; the text completes `must be ...`."""


_NONE_WORDS = ("none", "null")


def build_section(
    section: type[Any], raw: Mapping[str, object], key: str, problems: list[Problem]
) -> Any:
    """Return an instance of the dataclass `section`, or `None` after noting problems.

    Args:
        section: a configuration dataclass.
        raw: parsed TOML; leaves may be `OverrideText`.
        key: dotted key of the section, empty at the top.
        problems: what is wrong is appended here, with full keys.
    """
    before = len(problems)
    hints = typing.get_type_hints(section)
    fields = {field.name: field for field in dataclasses.fields(section)}
    values: dict[str, object] = {}
    for name, value in raw.items():
        full = _join(key, name)
        if name not in fields:
            problems.append(unknown_key(full, [_join(key, known) for known in fields]))
            continue
        converted = _convert(hints[name], value, full, problems)
        values[name] = converted
    for name, field in fields.items():
        is_required = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        if is_required and name not in raw:
            problems.append(
                Problem(key=_join(key, name), message="must be set, got nothing. Add it.")
            )
    if len(problems) > before:
        return None
    try:
        return section(**values)
    except ConfigError as error:
        problems += [found.under(key) if key else found for found in error.problems]
        return None


def _join(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name


def _convert(hint: Any, value: object, key: str, problems: list[Problem]) -> object:
    """Return `value` as the type `hint`, or note why it can not be."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, OverrideText):
            value = _parse_toml(value.text)
        if not isinstance(value, Mapping):
            message = f"must be a table, got {_show(value)}. Set its keys: {key}.name=value."
            problems.append(Problem(key=key, message=message))
            return None
        return build_section(hint, typing.cast("Mapping[str, object]", value), key, problems)
    if typing.get_origin(hint) is tuple:
        return _convert_list(typing.get_args(hint)[0], value, key, problems)
    try:
        return _convert_leaf(hint, value)
    except _Mismatch as mismatch:
        problems.append(Problem(key=key, message=f"must be {mismatch}, got {_show(value)}."))
        return None


def _convert_list(item: Any, value: object, key: str, problems: list[Problem]) -> object:
    """Tables, or plain names in place of tables that need nothing else."""
    if isinstance(value, OverrideText):
        value = _parse_toml(value.text)
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",")]
    if not isinstance(value, list):
        message = f'must be a list, got {_show(value)}. Write [[{key}]] tables or ["a", "b"].'
        problems.append(Problem(key=key, message=message))
        return None
    built: list[object] = []
    for index, entry in enumerate(typing.cast("list[object]", value)):
        raw = {"name": entry} if isinstance(entry, str) else entry
        built.append(_convert(item, raw, f"{key}[{index}]", problems))
    return tuple(built)


def _parse_toml(text: str) -> object:
    """Return the TOML value that `text` spells, or `text` itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _convert_leaf(hint: Any, value: object) -> object:
    origin = typing.get_origin(hint)
    if origin is Union or origin is types.UnionType:
        inner = next(part for part in typing.get_args(hint) if part is not type(None))
        word = value.text if isinstance(value, OverrideText) else value
        if isinstance(word, str) and word.strip().lower() in _NONE_WORDS:
            return None
        return _convert_leaf(inner, value)
    if isinstance(value, OverrideText):
        value = _typed_text(hint, value.text)
    if origin is Literal:
        allowed = typing.get_args(hint)
        if value not in allowed:
            raise _Mismatch("one of " + ", ".join(repr(name) for name in allowed))
        return value
    return _CONVERTERS[hint](value)


def _typed_text(hint: Any, text: str) -> object:
    """An override for a text key is taken as it stands unless it is quoted; others are TOML."""
    is_text = hint is str or typing.get_origin(hint) is Literal
    if is_text and not text.startswith(('"', "'")):
        return text
    return _parse_toml(text)


def _to_int(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise _Mismatch("a whole number")


def _to_float(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise _Mismatch("a number")


def _to_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise _Mismatch("true or false")


def _to_str(value: object) -> str:
    if isinstance(value, str):
        return value
    raise _Mismatch("a text in quotes")


_CONVERTERS: dict[type, Any] = {int: _to_int, float: _to_float, bool: _to_bool, str: _to_str}


def _show(value: object) -> str:
    if isinstance(value, OverrideText):
        value = _parse_toml(value.text)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a table"
    return repr(value)
