"""The benchmark runs at a small size on a CPU and reports every figure that it promises."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("losses.py")


def test_the_benchmark_reports_every_figure() -> None:
    sizes = ["--tokens", "48", "--hidden", "8", "--vocabulary", "64", "--repeats", "1"]
    out = subprocess.run(
        [sys.executable, str(SCRIPT), "--device", "cpu", *sizes],
        capture_output=True,
        text=True,
        check=True,
    )
    report = json.loads(out.stdout)
    logprobs = report["logprobs"]
    assert {"naive", "from_logits", "fused"} <= set(logprobs["times"])
    assert logprobs["time_over_naive"]["naive"] == 1.0
    for errors in logprobs["relative_error_of_logprobs_and_gradients_to_naive"].values():
        assert max(errors) < 1e-4
    for figures in report["losses_alone"].values():
        assert figures["decoupled_over_coupled"]["decoupled"] > 0
    assert report["losses_behind_logits"]["decoupled_over_coupled"]["coupled"] == 1.0
