"""Who may import whom.

Two contracts: the sources of a package import the standard library, themselves, and exactly what
the design grants them, all of it declared; and nobody reaches into another package below its root.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Find, Package

GRANTED = {
    "awrl_staleness": {"msgspec"},
    "awrl_pixelstore": {"cachetools", "numpy", "ray"},
    "awrl_ppo_loss": {"torch"},
    "awrl_rollout": {"msgspec", "aiohttp", "awrl_staleness"},
    "awrl_trainer": {"torch", "safetensors", "numpy", "awrl_ppo_loss"},
}
"""What the design grants each library; the app may import all that it declares."""
EXTRAS = {
    ("awrl_trainer", "hf"): {"transformers"},
    ("awrl_trainer", "hf_attention"): {"transformers"},
}
"""Modules or folders that need an extra, and what it brings."""
OPEN_BELOW_ROOT = {
    "awrl_trainer.hf",
    "awrl_trainer.testing",
    "awrl_rollout.testing",
    "awrl_ppo_loss.testing",
}
"""Modules that others may import although they are not a package's root."""


def imports_of(file: Path) -> Iterator[str]:
    """Yield the absolute name of every imported module, wherever the import stands."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


def granted(package: Package, file: Path) -> set[str]:
    below = file.relative_to(package.source).parts[0].removesuffix(".py")
    return (
        GRANTED.get(package.module, package.dependencies(with_extras=True))
        | EXTRAS.get((package.module, below), set())
        | {package.module}
    )


def test_sources_import_only_what_the_design_grants(package: Package) -> None:
    breaches = [
        f"{file.relative_to(package.folder)}: {name}"
        for file in sorted(package.source.rglob("*.py"))
        for name in imports_of(file)
        if name.split(".")[0] not in granted(package, file) | sys.stdlib_module_names
    ]
    assert not breaches, "\n".join(breaches)


def test_what_the_design_grants_is_declared(library: Package) -> None:
    assert library.dependencies() == GRANTED[library.module]


def test_what_a_package_declares_is_used(package: Package) -> None:
    used = {
        name.split(".")[0] for file in package.source.rglob("*.py") for name in imports_of(file)
    }
    # torch's metric writer needs tensorboard without naming it, and of miniwob only the pages are
    # served: its package, which pulls in more, is located but never imported.
    indirect = {"tensorboard", "miniwob"} if package.module == "webrl" else set[str]()
    assert package.dependencies() - used - indirect == set()


def test_nobody_reaches_into_another_package_below_its_root(find: Find, root: Path) -> None:
    modules = {*GRANTED, "webrl"}
    breaches: list[str] = []
    for file in find("packages/**/*.py", "apps/**/*.py", "benchmarks/**/*.py", "examples/*.py"):
        parts = file.relative_to(root).parts
        own = parts[1].replace("-", "_") if parts[0] in ("packages", "apps") else ""
        breaches += [
            f"{file.relative_to(root)}: {name}"
            for name in imports_of(file)
            if "." in name
            and name.split(".")[0] in modules - {own, "webrl"}
            and not any(name == door or name.startswith(f"{door}.") for door in OPEN_BELOW_ROOT)
        ]
    assert not breaches, "\n".join(breaches)


def test_no_library_imports_the_app(find: Find, root: Path) -> None:
    breaches = [
        str(file.relative_to(root))
        for file in find("packages/**/*.py")
        if any(name.split(".")[0] == "webrl" for name in imports_of(file))
    ]
    assert not breaches, "\n".join(breaches)


def modules_of(package: Package) -> dict[str, Path]:
    """Return the files of a package by their module's name."""
    return {
        ".".join(file.relative_to(package.source.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): file
        for file in package.source.rglob("*.py")
    }


def import_graph(package: Package) -> dict[str, set[str]]:
    """Return which modules of a package each of its modules imports, for types alone included."""
    modules = modules_of(package)
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for name, file in modules.items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module in modules:
                for alias in node.names:
                    below = f"{node.module}.{alias.name}"
                    graph[name].add(below if below in modules else node.module)
        graph[name].discard(name)
    return graph


def test_no_modules_import_each_other(package: Package) -> None:
    TopologicalSorter(import_graph(package)).prepare()  # raises CycleError, which names them


def test_no_folders_of_the_app_import_each_other(app: Package) -> None:
    folders: dict[str, set[str]] = {}
    for name, imported in import_graph(app).items():
        own = name.split(".")[1:2]
        others = {other.split(".")[1] for other in imported if "." in other} - set(own)
        if own:
            folders.setdefault(own[0], set()).update(others)
    TopologicalSorter(folders).prepare()
