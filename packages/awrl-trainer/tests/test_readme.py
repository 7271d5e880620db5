"""The README's program runs as printed, and the package keeps its promises of form."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import awrl_trainer
import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_program_of_the_readme_learns(capsys: pytest.CaptureFixture[str]) -> None:
    program = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    exec(compile(program, "README.md", "exec"), {})
    version, probability = capsys.readouterr().out.split()[:2]
    assert int(version) == 20
    assert float(probability) > 0.9


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 80


def test_every_public_name_exists_and_the_list_is_sorted() -> None:
    assert list(awrl_trainer.__all__) == sorted(awrl_trainer.__all__)
    assert all(hasattr(awrl_trainer, name) for name in awrl_trainer.__all__)


def test_only_the_extra_imports_transformers_and_nothing_imports_the_application() -> None:
    allowed = {"awrl_ppo_loss", "awrl_trainer", "numpy", "safetensors", "torch"}
    for path in (ROOT / "src").rglob("*.py"):
        tree = ast.parse(path.read_text())
        names = {
            name.split(".")[0]
            for node in ast.walk(tree)
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        extra = {"transformers"} if path.name.startswith("hf") else set[str]()
        assert names - sys.stdlib_module_names <= allowed | extra, path.name
