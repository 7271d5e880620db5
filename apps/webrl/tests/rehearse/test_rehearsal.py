"""`webrl rehearse` on a declared cluster: placement of everything, and a small part of it that runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from webrl.config import load_config
from webrl.rehearse.scale import largest_scale, scaled

CONFIG = load_config("webgym_48_16").config


def rehearse(*arguments: str, folder: Path) -> tuple[int, str, dict[str, Any]]:
    """Return exit code, output and the values of the report."""
    command = [sys.executable, "-W", "ignore", "-m", "webrl", "rehearse"]
    place = folder / "report.json"
    done = subprocess.run(
        [*command, "--folder", str(folder / "rehearsal"), "--json", str(place), *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    text = done.stdout + done.stderr
    return done.returncode, text, json.loads(place.read_text()) if place.exists() else {}


def test_a_scale_keeps_the_proportions_and_fits_its_batch() -> None:
    scale = scaled(CONFIG, 4)
    assert (scale.num_servers, scale.num_ranks, scale.num_workers) == (12, 4, 10)
    assert scale.batch_size % scale.num_ranks == 0
    assert scale.batch_size % CONFIG.gconfig.n_samples == 0
    assert scaled(CONFIG, 1).num_servers == 48
    assert largest_scale(CONFIG, num_nodes=8).num_bytes > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kill", "everybody"), "--kill must be one of browser, rollout-worker"),
        (("--divisor", "0"), "--divisor must be >= 1, got 0"),
        (("--placement-only",), "--folder must be empty or absent"),
        (("env.nodelabel=a=b",), "Did you mean 'env.node_label'?"),
    ],
)
def test_what_can_not_be_rehearsed_is_one_line(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    (tmp_path / "rehearsal").mkdir()
    (tmp_path / "rehearsal" / "of-another-run").touch()
    code, text, _ = rehearse("--config", "webgym_48_16", *arguments, folder=tmp_path)
    assert code == 2
    assert message in text


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.browser
@pytest.mark.timeout(600)
def test_a_part_of_a_run_is_placed_runs_and_survives_its_server(tmp_path: Path) -> None:
    words = ("--config", "one_node_8gpu", "--nodes", "2", "--divisor", "5", "--updates", "1")
    code, text, found = rehearse(*words, "--kill", "inference-server", folder=tmp_path)
    assert code == 0, text
    [node] = [counts for counts in found["placement"].values() if "actor" in counts]
    assert (node["rollout"], node["actor"], node["test-rollout"]) == (5, 2, 1)
    assert sum(counts.get("rollout-worker", 0) for counts in found["placement"].values()) == 4
    assert [fault["kind"] for fault in found["faults"]] == ["inference server"]
    assert all(step["publish/num_receivers"] <= 1 for step in found["steps"])
    assert "a publish is 18 broadcasts, as of the true policy" in text
    assert "no problem found" in text
