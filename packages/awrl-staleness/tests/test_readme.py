"""The README's program runs and says what the text claims."""

from __future__ import annotations

import pathlib
import re

import pytest

README = pathlib.Path(__file__).parents[1] / "README.md"


def test_the_program_runs_and_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    text = README.read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert sum(bool(line.strip()) for line in program.splitlines()) <= 15
    exec(compile(program, str(README), "exec"), {"__name__": "readme"})
    lines = capsys.readouterr().out.splitlines()
    assert [line[:1] for line in lines] == ["1", "2", "3"]
    assert all("4 more episodes may start; staleness binds" in line for line in lines)


def test_the_readme_is_at_most_80_lines() -> None:
    assert len(README.read_text().splitlines()) <= 80
