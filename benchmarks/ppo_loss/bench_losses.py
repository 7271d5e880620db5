"""The benchmark runs at a small size on a CPU and reports every figure that it promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

SCRIPT = Path(__file__).with_name("losses.py")
SIZES = {"--tokens": "4096", "--hidden": "256", "--vocabulary": "8192", "--repeats": "5"}
SMOKE = {"--tokens": "48", "--hidden": "8", "--vocabulary": "64", "--repeats": "1"}


def test_the_benchmark_reports_every_figure(benchmark: BenchmarkFixture) -> None:
    sizes = [word for pair in (SMOKE if benchmark.disabled else SIZES).items() for word in pair]
    command = [sys.executable, str(SCRIPT), "--device", "cpu", *sizes]
    out = benchmark.pedantic(
        subprocess.run, (command,), {"capture_output": True, "text": True, "check": True}, rounds=1
    )
    report = json.loads(out.stdout)
    logprobs = report["logprobs"]
    assert {"naive", "checkpointed", "ours"} <= set(logprobs["times"])
    assert logprobs["time_over_naive"]["naive"] == 1.0
    for errors in logprobs["relative_error_of_logprobs_and_gradients_to_naive"].values():
        assert max(errors) < 1e-4
    for figures in report["loss"].values():
        assert figures["relative_error_of_gradient"] < 1e-5
    benchmark.extra_info.update(
        {f"{name}_over_naive": ratio for name, ratio in logprobs["time_over_naive"].items()},
        **{
            f"over_areal_like_at_{tokens}": figures["over_areal_like"]["ours"]
            for tokens, figures in report["loss"].items()
        },
    )
