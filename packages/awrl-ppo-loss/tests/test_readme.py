"""The README keeps its promises: short, and its program runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import awrl_ppo_loss
import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_program_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    lines = [line for line in program.splitlines() if line.strip()]
    assert len(lines) - 2 <= 15, "imports aside, the program has 15 lines at most"
    exec(compile(program, "README.md", "exec"), {})  # the README's own program
    printed = capsys.readouterr().out
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", printed)]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    clipped = [float(share) for share in re.findall(r"clipped (\S+)", printed)]
    assert clipped[0] == 0.0
    assert clipped[-1] < 0.5


def test_the_readme_is_short_and_names_every_function() -> None:
    assert len(README.splitlines()) <= 80
    for name in awrl_ppo_loss.__all__:
        if name.islower():
            assert f"`{name}`" in README, name
