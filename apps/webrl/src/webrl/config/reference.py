"""Writes `docs/configuration.md` from the fields and the texts beneath them.

`webrl configs --keys` prints the page, `make docs` writes it, a test keeps it current.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap
import types
import typing
from typing import Annotated, Any, Literal

from webrl.config.load import format_value
from webrl.config.published import (
    PROXIMAL_CHOICES,
    PUBLISHED_KEYS,
    PUBLISHED_VALUES,
    SERVER_CHOICES,
)
from webrl.config.rules import bounds_of, range_text, section_type
from webrl.config.run import WebRLConfig

_INTRODUCTION = """\
# Configuration

Every key of `webrl train`, generated from the sources (`make docs`).

Settings come from `--config`, a packaged name (`webrl configs`) or the path of a TOML file, and
from `key=value` arguments, which win: `webrl train --config laptop actor.optimizer.lr=1e-4`.
The right side of an argument is TOML; texts need no quotes; `none` unsets what may be unset. An
unknown key, a wrong type, a value out of range and a contradiction are each refused with one
message before anything starts. `--dry-run` prints the resolved configuration and the plan.
Keys in **bold** are spelled as in the published configuration.
"""


def field_docs(section: type[Any]) -> dict[str, str]:
    """Return the text beneath each field of a configuration dataclass."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(section)))
    body = typing.cast("ast.ClassDef", tree.body[0]).body
    docs: dict[str, str] = {}
    for statement, following in itertools.pairwise(body):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            docs[statement.target.id] = " ".join(str(following.value.value).split())
    return docs


def reference_page() -> str:
    """Return the whole page."""
    published = {row.key for row in PUBLISHED_KEYS}
    parts = [_INTRODUCTION, "## The run itself\n", _table(WebRLConfig, "", published)]
    parts += _sections(WebRLConfig, "", published)
    parts += [_combinations()]
    return "\n".join(parts)


def _sections(section: type[Any], prefix: str, published: set[str]) -> list[str]:
    """Return a heading and a table for each section below `section`, in order."""
    parts: list[str] = []
    docs, hints = field_docs(section), typing.get_type_hints(section)
    for field in dataclasses.fields(section):
        below = section_type(hints[field.name])
        if below is None:
            continue
        is_list = typing.get_origin(hints[field.name]) is tuple
        key = f"{prefix}{field.name}"
        heading = f"## `[[{key}]]`" if is_list else f"## `[{key}]`"
        parts += [f"{heading}\n\n{docs[field.name]}\n"]
        parts += [_table(below, "" if is_list else f"{key}.", published)]
        parts += _sections(below, f"{key}.", published)
    return parts


def _table(section: type[Any], prefix: str, published: set[str]) -> str:
    docs, hints = field_docs(section), typing.get_type_hints(section, include_extras=True)
    lines = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    for field in dataclasses.fields(section):
        hint = hints[field.name]
        if section_type(hint) is not None:
            continue
        key = f"`{prefix}{field.name}`"
        shown = f"**{key}**" if f"{prefix}{field.name}" in published else key
        lines.append(
            f"| {shown} | {_type_text(hint)} | {_default_text(field)} | {docs[field.name]} |"
        )
    return "\n".join(lines) + "\n"


def _type_text(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        inner = next(part for part in typing.get_args(hint) if part is not type(None))
        return f"{_type_text(inner)}, may be unset"
    if origin is Annotated:
        rule = range_text(bounds_of(hint))
        bare = _type_text(typing.get_args(hint)[0])
        return bare if bare == "text" else f"{bare} {rule}"
    if origin is Literal:
        return ", ".join(f"`{name}`" for name in typing.get_args(hint))
    names = {int: "whole number", float: "number", bool: "true or false", str: "text"}
    return names.get(hint, "list of texts")


def _default_text(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "required"
    return "unset" if field.default is None else f"`{format_value(field.default)}`"


def _combinations() -> str:
    lines = ["## What goes together", "", "Loss and proximal policy; every other row is refused:"]
    lines += ["", "| `actor.use_decoupled_loss` | `actor.recompute_logprob` | "]
    lines[-1] += "`actor.prox_logp_method` | the run does |"
    lines += ["| --- | --- | --- | --- |"]
    lines += [
        f"| {format_value(row.use_decoupled_loss)} | {format_value(row.recompute_logprob)} | "
        f"`{row.prox_logp_method}` | {row.meaning} |"
        for row in PROXIMAL_CHOICES
    ]
    lines += ["", "Servers and devices; a positive number must equal the rollout's `d`:", ""]
    lines += ["| `cluster.n_inference_servers` | rollout and actor joined by | the run does |"]
    lines += ["| --- | --- | --- |"]
    lines += [
        f"| {'0' if row.is_synchronous else '> 0'} | `{row.operator.replace('|', chr(92) + '|')}` "
        f"| {row.meaning} |"
        for row in SERVER_CHOICES
    ]
    lines += ["", "What published keys decide in the packages:", ""]
    lines += ["| key | package | its own name |", "| --- | --- | --- |"]
    lines += [f"| `{row.key}` | `{row.owner}` | {row.name} |" for row in PUBLISHED_KEYS]
    return "\n".join([*lines, *_published_run()]) + "\n"


def _published_run() -> list[str]:
    """Return the table that compares the reference configuration with the published one."""
    lines = ["", "## The published run", ""]
    lines += ["What `webgym_48_16` makes of the published configuration's hyper-parameters:", ""]
    lines += [
        "| published | its value | key | `webgym_48_16` | |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in PUBLISHED_VALUES:
        key = f"`{row.key}`" if row.key else "none"
        lines.append(
            f"| {row.name} | {row.published} | {key} | `{format_value(row.value)}` | {row.note} |"
        )
    return lines
