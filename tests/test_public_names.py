"""What packages show: roots that only import, sorted names, types, one tree of errors."""

from __future__ import annotations

import ast
import importlib
import logging
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Find, Package


NULL_HANDLER = "logging.getLogger(__name__).addHandler(logging.NullHandler())"
"""The one side effect of a library's root: its log is silent until a program wants it."""


def is_import_only(tree: ast.Module) -> bool:
    """A docstring, imports, `__all__`, the library's `NullHandler`, and nothing else."""
    kinds = (ast.ImportFrom, ast.Import)
    return all(
        isinstance(node, kinds)
        or is_docstring(node)
        or exported(node) is not None
        or ast.unparse(node) == NULL_HANDLER
        for node in tree.body
    )


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def exported(node: ast.stmt) -> list[str] | None:
    """Return the names of an `__all__ = [...]` statement."""
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return None
    if node.targets[0].id != "__all__" or not isinstance(node.value, ast.List):
        return None
    return [str(item.value) for item in node.value.elts if isinstance(item, ast.Constant)]


def group_then_name(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, each in alphabetical order."""
    kind = 0 if name.isupper() else 1 if name[0].isupper() else 2
    return kind, name


def is_sorted(names: list[str]) -> bool:
    orders = (sorted(names), sorted(names, key=group_then_name), sorted(names, key=str.casefold))
    return names in orders


def test_package_roots_import_and_nothing_else(find: Find, root: Path) -> None:
    files = find("packages/*/src/**/__init__.py", "apps/*/src/**/__init__.py")
    breaches = [
        str(file.relative_to(root))
        for file in files
        if not is_import_only(tree := ast.parse(file.read_text())) or not ast.get_docstring(tree)
    ]
    assert not breaches, "\n".join(breaches)


def test_exported_names_are_sorted_and_named_once(find: Find, root: Path) -> None:
    breaches: list[str] = []
    for file in find("packages/*/src/**/__init__.py", "apps/*/src/**/__init__.py"):
        for node in ast.parse(file.read_text()).body:
            names = exported(node)
            if names is not None and (not is_sorted(names) or len(set(names)) != len(names)):
                breaches.append(str(file.relative_to(root)))
    assert not breaches, "\n".join(breaches)


def test_a_library_exports_what_it_names(library: Package) -> None:
    module = importlib.import_module(library.module)
    names: list[str] = module.__all__
    assert names, "a library shows something"
    assert [name for name in names if not hasattr(module, name)] == []
    assert [name for name in names if name.startswith("_")] == []


def test_a_library_is_silent_until_a_program_wants_its_log(library: Package) -> None:
    importlib.import_module(library.module)
    is_logging = any("getLogger" in file.read_text() for file in library.source.rglob("*.py"))
    handlers = [type(handler) for handler in logging.getLogger(library.module).handlers]
    assert handlers == ([logging.NullHandler] if is_logging else [])


def test_every_package_ships_its_types(package: Package) -> None:
    assert (package.source / "py.typed").is_file()


def test_errors_live_in_one_module_and_say_when_they_are_raised(library: Package) -> None:
    tree = ast.parse((library.source / "errors.py").read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    assert classes, "a library has an error tree"
    assert [node.name for node in classes if not ast.get_docstring(node)] == []
    module = importlib.import_module(library.module)
    assert [node.name for node in classes if node.name not in module.__all__] == []


def test_every_library_has_readme_changelog_and_licence(library: Package) -> None:
    for name in ("README.md", "CHANGELOG.md", "pyproject.toml"):
        assert (library.folder / name).is_file(), name
    assert "## Unreleased" in (library.folder / "CHANGELOG.md").read_text().replace(
        "[", ""
    ).replace("]", "")
    assert library.project["license"] == "Apache-2.0"


def imported_from(module: str, file: Path) -> set[str]:
    """Return the names that a program or module takes from a package's root."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        text = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    tree = ast.parse(text)
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == module
        for alias in node.names
    }
    reached = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == module
    }
    return imported | reached


WITHOUT_CALLER = {
    "count_denominator": "for a trainer of one's own; ours counts rows before it cuts micro-batches",
    "tensor_checksum": "for a receiver of one's own; the embedded server starts faster without it",
}
"""Public names without a caller here, and why they are there."""


def is_given_by(library: Package, name: str) -> bool:
    """Whether a function or a field of the package gives a value of this class to its caller."""
    given = re.compile(rf"(->|^    \w+:) [^=\n]*\b{name}\b", re.MULTILINE)
    return any(given.search(file.read_text()) for file in library.source.rglob("*.py"))


def has_caller(library: Package, name: str, used: set[str]) -> bool:
    """Whether the app, a sibling, an example or the README uses the name, or must be able to."""
    value = getattr(importlib.import_module(library.module), name)
    if name in used or not isinstance(value, type):
        return name in used
    return issubclass(value, Exception) or is_given_by(library, name)


def test_every_public_name_has_a_caller(library: Package, find: Find) -> None:
    patterns = ("packages/*/src/**/*.py", "apps/*/src/**/*.py", "examples/**/*.py")
    callers = [
        file
        for file in find(*patterns, "packages/*/README.md")
        if library.source not in file.parents
    ]
    used = set[str]().union(*(imported_from(library.module, file) for file in callers))
    names: list[str] = importlib.import_module(library.module).__all__
    unused = [name for name in names if not has_caller(library, name, used)]
    assert set(unused) - set(WITHOUT_CALLER) == set()


def test_no_two_classes_share_a_name(find: Find, root: Path) -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file in find("packages/*/src/**/*.py", "apps/*/src/**/*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(file.relative_to(root)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
