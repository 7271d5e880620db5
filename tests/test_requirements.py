"""Each mechanism of the published design has a test that exists, or says why not."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

MANIFEST = Path(__file__).with_name("requirements.toml")
MECHANISMS: list[dict[str, Any]] = tomllib.loads(MANIFEST.read_text())["mechanism"]
LEAST_REASON = 20
"""Characters below which a reason explains nothing."""


def names_in(file: Path) -> set[str]:
    """Return the names of tests that pytest finds at the top of a file."""
    names: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names.add(node.targets[0].id)
    return {name for name in names if name.lower().startswith("test")}


def test_ids_are_unique_and_sentences_whole() -> None:
    ids = [row["id"] for row in MECHANISMS]
    assert len(ids) == len(set(ids))
    assert [
        row["id"] for row in MECHANISMS if not re.fullmatch(r"[A-Z`].*\.", row["sentence"])
    ] == []
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in ids)


@pytest.mark.parametrize("row", MECHANISMS, ids=lambda row: row["id"])
def test_a_mechanism_has_a_test_that_exists_or_a_reason(row: dict[str, Any], root: Path) -> None:
    tests: list[str] = row["tests"]
    if not tests:
        assert len(row.get("reason", "")) >= LEAST_REASON
    for node_id in tests:
        path, _, name = node_id.partition("::")
        assert (root / path).is_file(), node_id
        assert name in names_in(root / path), node_id
