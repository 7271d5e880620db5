"""An error that crosses a task group is of the type that its caller catches."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Find

WRAPPING = {
    "concurrency.py": "makes the one that unwraps",
    "client.py": "may not import it; unwraps by itself",
    "receivers.py": "may not import it; its tasks return outcomes and raise nothing",
}
"""Files that may use asyncio's own, and why; all others use `UnwrappedTaskGroup`."""


def uses(file: Path) -> bool:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any(name.endswith(".TaskGroup") for name in calls)


def test_groups_of_tasks_raise_the_first_error_itself(find: Find, root: Path) -> None:
    files = find("packages/*/src/**/*.py", "apps/*/src/**/*.py")
    breaches = [str(f.relative_to(root)) for f in files if f.name not in WRAPPING and uses(f)]
    assert not breaches, "\n".join(breaches)


def test_nobody_unwraps_a_group_at_its_caller(find: Find, root: Path) -> None:
    breaches = [
        f"{file.relative_to(root)}:{node.lineno}"
        for file in find("packages/*/src/**/*.py", "apps/*/src/**/*.py")
        if file.name not in WRAPPING
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.TryStar)
        or (isinstance(node, ast.ExceptHandler) and node.type and "Group" in ast.unparse(node.type))
    ]
    assert not breaches, "\n".join(breaches)
