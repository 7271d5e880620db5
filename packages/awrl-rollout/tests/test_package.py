"""The public surface and the import contract."""

import ast
import pathlib
import subprocess
import sys

import awrl_rollout

SOURCE = pathlib.Path(awrl_rollout.__file__).parent


def test_all_is_sorted_and_every_name_is_there() -> None:
    assert awrl_rollout.__all__ == sorted(awrl_rollout.__all__)
    assert all(hasattr(awrl_rollout, name) for name in awrl_rollout.__all__)


def test_the_root_module_only_imports() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    kinds = {type(node) for node in tree.body}
    assert kinds <= {ast.Expr, ast.ImportFrom, ast.Assign}


def test_only_declared_dependencies_are_imported() -> None:
    roots: set[str] = set()
    for path in SOURCE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                roots.add(node.module.split(".")[0])
            elif isinstance(node, ast.Import):
                roots.update(alias.name.split(".")[0] for alias in node.names)
    foreign = {root for root in roots if root not in sys.stdlib_module_names}
    assert foreign == {"aiohttp", "awrl_rollout", "awrl_staleness", "msgspec"}


def test_importing_it_loads_no_heavy_package_and_prints_nothing() -> None:
    program = (
        "import sys, logging, awrl_rollout\n"
        "logging.getLogger('awrl_rollout.x').warning('quiet')\n"
        "heavy = {'torch', 'ray', 'numpy', 'playwright', 'transformers'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("", "")
