"""The example runs as it stands, and shows what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

NUM_UPDATES = 3
LINE = re.compile(
    r"version +(\d+)  success +(\d+)% of +(\d+)  staleness (\d+) to (\d+) of at most (\d+)"
    r" \((\d+) episodes span versions\)  pause +(\d+) ms  server's weights (\w{8})"
)


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.timeout(600)
def test_the_spine_trains_on_stale_episodes_and_publishes_in_place(root: Path) -> None:
    """In real pages, with a real server; every line that it prints is looked at."""
    done = subprocess.run(
        [sys.executable, "examples/spine.py", str(NUM_UPDATES)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = LINE.findall(done.stdout)
    assert [int(line[0]) for line in lines] == list(range(1, NUM_UPDATES + 1))
    assert all(int(num_episodes) > 0 for _, _, num_episodes, *_ in lines)
    ages = [(int(line[3]), int(line[4]), int(line[5])) for line in lines]
    assert all(0 <= youngest <= oldest <= eta for youngest, oldest, eta in ages)
    # Episodes that began before an update were trained on after it.
    assert max(oldest for _, oldest, _ in ages) > 0
    assert len({line[-1] for line in lines}) == NUM_UPDATES
