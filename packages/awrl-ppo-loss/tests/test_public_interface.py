"""What the package promises about its own shape."""

from __future__ import annotations

import ast
import inspect
import logging
import re
import subprocess
import sys
from pathlib import Path

import awrl_ppo_loss

SOURCE = Path(awrl_ppo_loss.__file__).parent
MODULES = sorted(SOURCE.glob("*.py"))


def test_every_public_name_is_exported_sorted_and_documented() -> None:
    names = awrl_ppo_loss.__all__
    assert names == sorted(names)
    assert len(names) == len(set(names))
    imported = {
        alias.name
        for node in ast.parse((SOURCE / "__init__.py").read_text()).body
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
    }
    assert imported == set(names)
    for name in names:
        value = getattr(awrl_ppo_loss, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert value.__doc__, name


def test_the_root_module_holds_a_docstring_imports_and_all_and_nothing_else() -> None:
    body = ast.parse((SOURCE / "__init__.py").read_text()).body
    kinds = [type(node) for node in body]
    assert kinds[0] is ast.Expr
    assert kinds[-1] is ast.Assign
    assert set(kinds[1:-1]) == {ast.ImportFrom}


def test_importing_the_package_needs_torch_and_no_sibling() -> None:
    program = (
        "import sys, awrl_ppo_loss; "
        "print(sorted(m for m in sys.modules if m.startswith('awrl') and '.' not in m))"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "['awrl_ppo_loss']"
    allowed = set(sys.stdlib_module_names) | {"torch", "awrl_ppo_loss"}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            roots = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                roots = [node.module or ""]
            assert {root.partition(".")[0] for root in roots} <= allowed, path.name


def test_modules_and_functions_stay_small() -> None:
    for path in MODULES:
        text = path.read_text()
        assert len(text.splitlines()) <= 600, path.name
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef):
                continue
            first = node.body[0]
            documented = ast.get_docstring(node) is not None
            doc = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
            length = (node.end_lineno or 0) - node.lineno + 1 - doc
            assert length <= 50, f"{path.name}: {node.name} has {length} lines"


def test_no_name_calls_a_policy_by_its_age() -> None:
    for path in MODULES:
        assert not re.search(r"\bold\b|\bold_|_old\b", path.read_text()), path.name


def test_a_library_logs_to_nobody_unless_asked() -> None:
    assert not logging.getLogger("awrl_ppo_loss").handlers
    assert not [path.name for path in MODULES if "print(" in path.read_text()]
