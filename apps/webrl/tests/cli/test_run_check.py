"""`webrl doctor --run`: every part of a run works once, in the small."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.browser
def test_every_part_of_a_run_does_its_work_once() -> None:
    # As its user starts it: a process keeps what Ray read of the environment when it was imported.
    done = subprocess.run(
        [sys.executable, "-m", "webrl", "doctor", "--run"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for part in ("policy", "server", "generation", "ray", "page"):
        assert re.search(rf"^.*\b{part}\b.* s\)$", done.stdout, re.MULTILINE), done.stdout
