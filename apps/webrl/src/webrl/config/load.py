"""From a TOML file and `key=value` arguments to a checked `WebRLConfig`, and back to TOML.

Invariant: a configuration that loads has no unknown key, no wrong type, no value out of range and
no contradiction; otherwise one `ConfigError` lists everything that was found.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

from webrl.config.rules import Section, breach, converted, is_leaf
from webrl.config.run import WebRLConfig
from webrl.config.spelling import unknown_key
from webrl.errors import ConfigError, Problem

SectionT = TypeVar("SectionT", bound=Section)
_Tree = dict[str, object]
_PACKAGED = " (packaged)"
"""What a source of the package ends with, as it is shown."""
_NONE_WORDS = ("none", "null")
"""What unsets a key that may be unset, in any case."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LoadedConfig:
    """A checked configuration and where it came from."""

    name: str
    """Name of the packaged configuration, or the file's name without its ending."""
    source: str
    """What was read, for people: a path, or `packaged`."""
    config: WebRLConfig
    """The configuration itself."""

    @property
    def is_packaged(self) -> bool:
        """Whether it began as a packaged configuration."""
        return self.source.endswith(_PACKAGED)


def packaged_configs() -> dict[str, str]:
    """Return the text of each packaged configuration by name, in alphabetical order."""
    folder = resources.files("webrl") / "configs"
    files = [entry for entry in folder.iterdir() if entry.name.endswith(".toml")]
    return {
        entry.name.removesuffix(".toml"): entry.read_text(encoding="utf-8")
        for entry in sorted(files, key=lambda entry: entry.name)
    }


def load_config(source: str, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read a configuration, apply `key=value` overrides in order, and check the result.

    Args:
        source: Name of a packaged configuration, or path of a TOML file.
        overrides: Such as `actor.optimizer.lr=1e-5`; the right side is TOML, and texts need no
            quotes; `none` unsets a key that may be unset.

    Raises:
        ConfigError: The source does not exist or does not parse, or keys break rules.
    """
    name, shown, text = _read_source(source)
    try:
        tree: _Tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{shown} must be valid TOML: {error}.") from error
    problems: list[Problem] = []
    for override in overrides:
        problem = _apply_override(tree, override)
        if problem is not None:
            problems.append(problem)
    config = build_section(WebRLConfig, tree, "", problems)
    if config is None or problems:
        raise ConfigError(problems)
    return LoadedConfig(name=name, source=shown, config=config)


def _read_source(source: str) -> tuple[str, str, str]:
    """Return name, shown origin and text of a packaged configuration or a file."""
    packaged = packaged_configs()
    if source in packaged:
        return source, f"{source}{_PACKAGED}", packaged[source]
    path = Path(source)
    try:
        return path.stem, str(path), path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        close = difflib.get_close_matches(source, packaged, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"Packaged: {', '.join(packaged)}."
        raise ConfigError(
            f"--config must be a packaged name or a TOML file, got {source!r}. {hint}"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config must be a readable TOML file, got {source!r}: {error}.") from (
            error
        )


def _apply_override(tree: _Tree, override: str) -> Problem | None:
    """Set one key of the parsed tree; the value is typed later, with the others."""
    key, equals, text = override.partition("=")
    key = key.strip()
    parts = key.split(".")
    if not equals or not all(part.strip() for part in parts):
        message = f"must be key=value, got {override!r}. Write e.g. seed=3."
        return Problem(key="argument", message=message)
    # Words that a shell passes on in another encoding hold lone surrogates.
    if not override.isascii() and override.encode(errors="replace").decode() != override:
        message = f"must be text in UTF-8, got {override!r}. Set the terminal's encoding."
        return Problem(key="argument", message=message)
    node = tree
    for part in parts[:-1]:
        child = node.setdefault(part, {})
        if not isinstance(child, dict):
            return unknown_key(key)
        node = typing.cast("_Tree", child)
    node[parts[-1]] = OverrideText(text.strip())
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class OverrideText:
    """The right side of a `key=value` argument, which its key's type will read."""

    text: str

    def typed(self, hint: Any) -> object:
        """Return the TOML value of the text.

        A text key takes it as it stands unless quoted; a list takes `a, b` for its entries.
        """
        is_text = hint is str or typing.get_origin(hint) is Literal
        if is_text and not self.text.startswith(('"', "'")):
            return self.text
        try:
            value = tomllib.loads(f"value = {self.text}")["value"]
        except tomllib.TOMLDecodeError:
            value = self.text
        if typing.get_origin(hint) is tuple and isinstance(value, str):
            return [part.strip() for part in value.split(",")]
        return value


def build_section(
    section: type[SectionT], raw: Mapping[str, object], key: str, problems: list[Problem]
) -> SectionT | None:
    """Return the section that `raw` spells, or None after noting every problem.

    Args:
        raw: Parsed TOML; leaves may be an `OverrideText`.
        key: Dotted key of the section, empty at the top.
        problems: What is wrong is appended here, with full keys.
    """
    before = len(problems)
    place = f"{key}." if key else ""
    hints = typing.get_type_hints(section)
    fields = {field.name: field for field in dataclasses.fields(typing.cast("Any", section))}
    values: dict[str, Any] = {}
    for name, value in raw.items():
        if name in fields:
            values[name] = _read(hints[name], value, place + name, problems)
        else:
            problems.append(unknown_key(place + name, [place + known for known in fields]))
    for name, field in fields.items():
        is_required = field.default is field.default_factory is dataclasses.MISSING
        if is_required and name not in raw:
            problems.append(Problem(key=place + name, message="must be set, got nothing. Add it."))
    if len(problems) > before:
        return None
    try:
        return section(**values)
    except ConfigError as error:
        problems += [problem.under(key) if key else problem for problem in error.problems]
        return None


def _read(hint: Any, value: object, key: str, problems: list[Problem]) -> object:
    """Return `value` as the type `hint`, or None after noting why it can not be."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        word = value.text if isinstance(value, OverrideText) else value
        if isinstance(word, str) and word.strip().lower() in _NONE_WORDS:
            return None
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    if isinstance(value, OverrideText):
        value = value.typed(hint)
    if is_leaf(hint):
        try:
            return converted(hint, value)
        except ConfigError as error:
            problems += [problem.under(key) for problem in error.problems]
            return None
    if typing.get_origin(hint) is tuple:
        return _read_list(typing.get_args(hint)[0], value, key, problems)
    if isinstance(value, Mapping):
        return build_section(hint, typing.cast("_Tree", value), key, problems)
    problems.append(breach(key, "a table", value, f"Set its keys: {key}.name=value."))
    return None


def _read_list(
    item: type[Section], value: object, key: str, problems: list[Problem]
) -> tuple[object, ...]:
    """Return the tables of a list, where a plain text stands for a table with that `name`."""
    if not isinstance(value, list):
        problems.append(breach(key, "a list", value, f'Write [[{key}]] tables or ["a", "b"].'))
        return ()
    listed = typing.cast("list[object]", value)
    entries = ({"name": entry} if isinstance(entry, str) else entry for entry in listed)
    return tuple(
        _read(item, entry, f"{key}[{index}]", problems) for index, entry in enumerate(entries)
    )


def resolve_run_dir(loaded: LoadedConfig, started_at: datetime) -> LoadedConfig:
    """Return the same configuration with `{config}` and `{time}` of `run_dir` filled in.

    Args:
        started_at: Becomes `YYYYmmdd-HHMMSS`.

    Raises:
        ConfigError: `run_dir` holds another placeholder.
    """
    pattern = loaded.config.run_dir
    filled = pattern.replace("{config}", loaded.name).replace(
        "{time}", started_at.strftime("%Y%m%d-%H%M%S")
    )
    if "{" in filled or "}" in filled:
        message = f"must hold no placeholder but {{config}} and {{time}}, got {pattern!r}. Fix it."
        raise ConfigError([Problem(key="run_dir", message=message)])
    config = dataclasses.replace(loaded.config, run_dir=filled)
    return dataclasses.replace(loaded, config=config)


def to_toml(config: WebRLConfig) -> str:
    """Return every key of `config` as TOML; what is unset reads `"none"`."""
    lines: list[str] = []
    _write_table(config, "", lines)
    return "\n".join(lines).strip() + "\n"


def _write_table(section: Section, key: str, lines: list[str]) -> None:
    """Leaves first, then tables below, as TOML demands."""
    below: list[tuple[str, Any]] = []
    for name, hint in typing.get_type_hints(type(section)).items():
        value = getattr(section, name)
        if is_leaf(hint):
            lines.append(f"{name} = {format_value(value)}")
        else:
            below.append((f"{key}.{name}" if key else name, value))
    for full, value in below:
        is_list = isinstance(value, tuple)
        for entry in typing.cast("tuple[Section, ...]", value if is_list else (value,)):
            lines += ["", f"[[{full}]]" if is_list else f"[{full}]"]
            _write_table(entry, full, lines)


def format_value(value: object) -> str:
    """Return one value as TOML spells it."""
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(format_value, typing.cast('tuple[object, ...]', value)))}]"
    if isinstance(value, str):
        # JSON's escapes are TOML's, except that TOML also wants DEL escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
