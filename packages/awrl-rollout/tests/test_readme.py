"""The README's program runs and says what the text claims."""

import pathlib
import re

import pytest

README = pathlib.Path(__file__).parents[1] / "README.md"


def test_the_program_runs_and_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    text = README.read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert sum(bool(line.strip()) for line in program.splitlines()) <= 15
    exec(compile(program, str(README), "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out.splitlines() == ["4 4"] * 3


def test_the_readme_is_at_most_80_lines() -> None:
    assert len(README.read_text().splitlines()) <= 80
