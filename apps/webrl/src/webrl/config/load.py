"""From a TOML file and `key=value` arguments to a checked `WebRLConfig`.

Invariant: a configuration that loads has no unknown key, no wrong type, no value out of range and
no contradiction; otherwise one `ConfigError` lists everything that was found.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import typing
from collections.abc import Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path

from webrl.config.coerce import OverrideText, build_section
from webrl.config.run import WebRLConfig
from webrl.config.spelling import unknown_key
from webrl.errors import ConfigError, Problem

__all__ = ["LoadedConfig", "load_config", "packaged_configs", "resolve_run_dir"]

_Tree = dict[str, object]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LoadedConfig:
    """A checked configuration and where it came from."""

    name: str
    """Name of the packaged configuration, or the file's name without its ending."""
    source: str
    """What was read, for people: a path, or `packaged`."""
    config: WebRLConfig
    """The configuration itself."""


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
        source: name of a packaged configuration, or path of a TOML file.
        overrides: such as `actor.optimizer.lr=1e-5`; the right side is TOML, and texts need no
            quotes; `none` unsets a key that may be unset.

    Raises:
        ConfigError: the source does not exist or does not parse, or keys break rules.
        AllocationError: `allocation_mode` does not parse.
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
    if problems or config is None:
        raise ConfigError(problems)
    return LoadedConfig(name=name, source=shown, config=config)


def _read_source(source: str) -> tuple[str, str, str]:
    """Return name, shown origin and text of a packaged configuration or a file."""
    packaged = packaged_configs()
    if source in packaged:
        return source, f"{source} (packaged)", packaged[source]
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
    node = tree
    for part in parts[:-1]:
        child = node.setdefault(part, {})
        if not isinstance(child, dict):
            return unknown_key(key)
        node = typing.cast("_Tree", child)
    node[parts[-1]] = OverrideText(text.strip())
    return None


def resolve_run_dir(loaded: LoadedConfig, started_at: datetime) -> LoadedConfig:
    """Return the same configuration with `{config}` and `{time}` of `run_dir` filled in.

    Args:
        loaded: as read.
        started_at: becomes `YYYYmmdd-HHMMSS`.

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
