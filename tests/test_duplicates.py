"""No function body of some size exists twice in the sources."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Find

LEAST_LINES = 5
"""Shorter bodies may well be equal by chance."""


def bodies(file: Path) -> list[tuple[str, str]]:
    """Return place and normalised body of each function of some size, docstring left out."""
    found: list[tuple[str, str]] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        text = "\n".join(ast.unparse(statement) for statement in body)
        if text.count("\n") + 1 >= LEAST_LINES:
            found.append((f"{file.name}:{node.lineno} {node.name}", text))
    return found


def test_no_function_body_exists_twice(find: Find) -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file in find("packages/*/src/**/*.py", "apps/*/src/**/*.py", "benchmarks/**/*.py"):
        for place, body in bodies(file):
            places[body].append(place)
    breaches = [" = ".join(twins) for twins in places.values() if len(twins) > 1]
    assert not breaches, "\n".join(breaches)
