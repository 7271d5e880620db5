"""Writes a configuration as TOML that loads to the same value again."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from webrl.config.run import WebRLConfig

__all__ = ["format_value", "to_toml"]


def to_toml(config: WebRLConfig) -> str:
    """Return every key of `config` as TOML; what is unset reads `"none"`."""
    lines: list[str] = []
    _write_table(config, "", lines)
    return "\n".join(lines).strip() + "\n"


def _write_table(section: Any, key: str, lines: list[str]) -> None:
    """Leaves first, then tables below, as TOML demands."""
    fields = [(field.name, getattr(section, field.name)) for field in dataclasses.fields(section)]
    for name, value in fields:
        if not dataclasses.is_dataclass(value) and not isinstance(value, tuple):
            lines.append(f"{name} = {format_value(value)}")
    for name, value in fields:
        full = f"{key}.{name}" if key else name
        if isinstance(value, tuple):
            for entry in value:
                lines += ["", f"[[{full}]]"]
                _write_table(entry, full, lines)
        elif dataclasses.is_dataclass(value):
            lines += ["", f"[{full}]"]
            _write_table(value, full, lines)


def format_value(value: object) -> str:
    """Return one value as TOML spells it."""
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # JSON's escapes are TOML's, except that TOML also wants DEL escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
