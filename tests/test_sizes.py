"""Files and functions stay small enough to be read at once."""

from __future__ import annotations

import ast
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Find, Package

SOURCE_LINES = 600
TEST_LINES = 600
FUNCTION_LINES = 50
MEDIAN_FUNCTION_LINES = 12
README_LINES = 80
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}


def is_test(file: Path) -> bool:
    return "tests" in file.parts


def num_lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def function_lengths(file: Path) -> list[tuple[str, int]]:
    """Return name and length of every function, signature included and docstring not."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return [
        (node.name, span(node) - docstring_lines(node))
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def span(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return span(node.body[0]) if ast.get_docstring(node) is not None else 0


def test_no_file_is_too_long(find: Find, root: Path) -> None:
    files = find("packages/**/*.py", "apps/**/*.py", "benchmarks/**/*.py", "tests/**/*.py")
    lengths = {file: num_lines(file) for file in files}
    limits = {file: TEST_LINES if is_test(file) else SOURCE_LINES for file in files}
    breaches = [
        f"{file.relative_to(root)}: {length}"
        for file, length in lengths.items()
        if length > limits[file]
    ]
    assert not breaches, "\n".join(breaches)


def test_no_function_is_too_long(find: Find, root: Path) -> None:
    breaches = [
        f"{file.relative_to(root)}: {name} {length}"
        for file in find("packages/*/src/**/*.py", "apps/*/src/**/*.py", "benchmarks/**/*.py")
        for name, length in function_lengths(file)
        if length > FUNCTION_LINES
    ]
    assert not breaches, "\n".join(breaches)


def test_most_functions_are_short(package: Package) -> None:
    lengths = [
        length for file in package.source.rglob("*.py") for _, length in function_lengths(file)
    ]
    assert statistics.median(lengths) <= MEDIAN_FUNCTION_LINES


def test_modules_are_named_by_what_they_hold(find: Find, root: Path) -> None:
    files = find("packages/*/src/**/*.py", "apps/*/src/**/*.py", "benchmarks/**/*.py")
    assert [str(file.relative_to(root)) for file in files if file.stem in VAGUE_NAMES] == []


def test_a_library_readme_is_one_page(library: Package) -> None:
    assert num_lines(library.folder / "README.md") <= README_LINES
