"""The comparison of pools at its smallest: both modes run and leave figures, in under a minute."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

MEASURE = Path(__file__).with_name("measure.py")


def test_both_pools_run_the_workload(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    out = tmp_path / "pools.json"
    command = [sys.executable, str(MEASURE), "--scale", "smoke", "--slots", "8", "--out", str(out)]
    benchmark.pedantic(subprocess.run, (command,), {"check": True}, rounds=1)
    points = {point["mode"]: point for point in json.loads(out.read_text())["points"]}
    asynchronous, synchronous = points["asynchronous"], points["synchronous"]
    assert asynchronous["episodes"] > 0
    assert synchronous["episodes"] > 0
    assert asynchronous["off_policyness"] <= 2
    assert synchronous["warmup_s_per_round"] > 0
    benchmark.extra_info.update(
        over_synchronous=asynchronous["episodes_per_s"] / synchronous["episodes_per_s"],
        asynchronous=asynchronous["episodes_per_s"],
        synchronous=synchronous["episodes_per_s"],
    )
