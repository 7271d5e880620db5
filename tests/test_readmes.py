"""Every Python program in a README runs, each in an interpreter of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Package

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
DEADLINE_S = 240


def programs(readme: Path) -> list[str]:
    """Return the text of each fenced Python block, in order."""
    return BLOCK.findall(readme.read_text(encoding="utf-8"))


def run_program(text: str, folder: Path, python: str = sys.executable) -> str:
    """Return what the program printed; fail with its errors."""
    file = folder / "readme_program.py"
    file.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [python, "-W", "ignore", str(file)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_program_of_a_library_readme_runs_and_shows_something(
    library: Package, tmp_path: Path
) -> None:
    found = programs(library.folder / "README.md")
    assert found, "a library's README holds a program"
    for text in found:
        assert run_program(text, tmp_path).strip()


@pytest.mark.slow
def test_the_programs_of_the_root_readme_run(root: Path, tmp_path: Path) -> None:
    for text in programs(root / "README.md"):
        run_program(text, tmp_path)


def test_a_program_that_fails_is_reported_with_its_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run_program("1 / 0", tmp_path)


def test_the_first_program_of_a_library_is_short(library: Package) -> None:
    lines = [
        line for line in programs(library.folder / "README.md")[0].splitlines() if line.strip()
    ]
    assert len(lines) <= 20
