"""Each mechanism of the published design is tied to a test by a marker on it, or says why not."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from conftest import Find, RequirementTies

MANIFEST = Path(__file__).with_name("requirements.toml")
MECHANISMS: list[dict[str, Any]] = tomllib.loads(MANIFEST.read_text())["mechanism"]
LEAST_REASON = 20
"""Characters below which a reason explains nothing."""
MARKER = "requirement"


def is_marker(node: ast.expr) -> bool:
    """Whether this is a call of `pytest.mark.requirement`."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) == f"pytest.mark.{MARKER}"


def ids_of(node: ast.expr) -> list[str]:
    assert isinstance(node, ast.Call)
    return [ast.literal_eval(argument) for argument in node.args]


def is_machine(node: ast.expr) -> bool:
    """Whether this is `pytest.mark.requirement(...)(Machine.TestCase)`."""
    return isinstance(node, ast.Call) and is_marker(node.func)


def is_empty(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a test calls nothing and asserts nothing."""
    return not any(isinstance(part, (ast.Assert, ast.Call)) for part in ast.walk(node_body(node)))


def node_body(node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.Module:
    return ast.Module(body=node.body, type_ignores=[])


def ties_in(tree: ast.Module) -> Iterator[tuple[str, list[str], bool]]:
    """Yield name, ids, and whether it proves something, of each tied test of a file."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for marker in filter(is_marker, node.decorator_list):
                yield node.name, ids_of(marker), not is_empty(node)
        elif isinstance(node, ast.Assign) and is_machine(node.value):
            assert isinstance(node.value, ast.Call)
            yield ast.unparse(node.targets[0]), ids_of(node.value.func), bool(node.value.args)


@pytest.fixture(scope="module")
def ties(find: Find, root: Path) -> dict[str, list[tuple[str, bool]]]:
    """Tests by the id that they are tied to."""
    found: dict[str, list[tuple[str, bool]]] = defaultdict(list)
    for file in find("packages/*/tests/**/*.py", "apps/*/tests/**/*.py", "tests/test_*.py"):
        text = file.read_text(encoding="utf-8")
        if f"mark.{MARKER}(" in text:
            for name, ids, proves in ties_in(ast.parse(text)):
                for id_ in ids:
                    found[id_].append((f"{file.relative_to(root)}::{name}", proves))
    return found


def test_ids_are_unique_and_sentences_whole() -> None:
    ids = [row["id"] for row in MECHANISMS]
    assert len(ids) == len(set(ids))
    assert [
        row["id"] for row in MECHANISMS if not re.fullmatch(r"[A-Z`].*\.", row["sentence"])
    ] == []
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in ids)


def test_every_tie_names_a_mechanism(ties: dict[str, list[tuple[str, bool]]]) -> None:
    known = {row["id"] for row in MECHANISMS}
    assert {id_: tests for id_, tests in ties.items() if id_ not in known} == {}


@pytest.mark.parametrize("row", MECHANISMS, ids=lambda row: row["id"])
def test_a_mechanism_has_tests_or_a_reason(
    row: dict[str, Any], ties: dict[str, list[tuple[str, bool]]]
) -> None:
    tests = ties.get(row["id"], [])
    assert bool(tests) != (len(row.get("reason", "")) >= LEAST_REASON), (
        "a mechanism has either tests tied to it or a reason why not"
    )
    assert [name for name, proves in tests if not proves] == [], "these prove nothing"


def test_an_empty_test_proves_nothing() -> None:
    empty, whole = ast.parse('def test_a():\n    "Doc."\n    pass\ndef test_b():\n    f()').body
    assert isinstance(empty, ast.FunctionDef)
    assert isinstance(whole, ast.FunctionDef)
    assert is_empty(empty)
    assert not is_empty(whole)


def test_a_mechanism_whose_tests_were_all_skipped_fails_the_run(
    requirement_ties: type[RequirementTies],
) -> None:
    ties = requirement_ties()
    seen: tuple[tuple[str, list[str], Literal["passed", "skipped"]], ...] = (
        ("a", ["one", "two"], "skipped"),
        ("b", ["two"], "passed"),
        ("c", ["three"], "skipped"),
    )
    for node_id, ids, outcome in seen:
        properties = [("requirement", id_) for id_ in ids]
        ties.pytest_runtest_logreport(
            pytest.TestReport(
                node_id,
                (node_id, 0, node_id),
                {},
                outcome,
                None,
                "call",
                user_properties=properties,
            )
        )
    assert ties.unproved() == {"one": ["a"], "three": ["c"]}
