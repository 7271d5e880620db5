"""The whole system on real parts: Chromium, Ray, the embedded server, FSDP, gloo."""

from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from awrl_trainer import latest_complete_checkpoint
from webrl.rehearse.injection import Injection, inject_faults, train_command
from webrl.rehearse.targets import KINDS
from webrl.rehearse.verdict import examine

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.browser, pytest.mark.timeout(1200)]


@pytest.mark.requirement(
    "ray-scheduler", "fan-out", "xccl-broadcast", "generation-overlaps-training"
)
def test_two_servers_and_two_ranks_train_publish_evaluate_and_resume(
    policy: Path, runs: Any, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    runs.train(
        "--config",
        "laptop",
        f"run_dir={run_dir}",
        f"policy.path={policy}",
        "allocation_mode=embedded[rollout]:d2t2+fsdp[actor]:d2",
        "cluster.n_inference_servers=2",
        "total_steps=3",
        "test_rollout.n_gpus=2",
        "test_rollout.num_seeds=8",
        "test_rollout.interval_s=1",
        *runs.small,
    )
    steps = runs.lines(run_dir)
    assert [step["weights/version"] for step in steps] == [1, 2, 3]
    # Every publish reached both servers.
    assert all(step["publish/num_receivers"] == 2 for step in steps)
    assert all(step["off_policyness/max"] <= 1 for step in steps)
    assert all(step["rollout/lost_rows"] == 0 for step in steps)
    for sample in runs.samples(run_dir):
        for step in sample["steps"]:
            assert len(step["output_ids"]) == len(step["behavior_logprobs"])
            assert len(step["output_ids"]) == len(step["versions"])
            assert set(step["versions"]) <= {0, 1, 2}
            assert all(image["key"] in sample["files"] for image in step["images"])
    evaluations = [json.loads(line) for line in (run_dir / "evaluations.jsonl").open()]
    assert evaluations
    assert all(found["low"] <= found["mean"] <= found["high"] for found in evaluations)
    assert len({(found["version"], found["num_episodes"]) for found in evaluations}) == len(
        evaluations
    )
    newest = latest_complete_checkpoint(run_dir / "checkpoints" / "policy")
    assert newest is not None
    assert newest.name == "version_3"
    assert (newest / "config.json").is_file()

    text = runs.train("--resume", str(run_dir), "total_steps=4")
    assert "resumed at version 3" in text
    steps = runs.lines(run_dir)
    assert [step["weights/version"] for step in steps] == [1, 2, 3, 4]
    # The first episodes after a resume are of the resumed version.
    assert steps[-1]["off_policyness/max"] <= 1
    resumed = [s for s in runs.samples(run_dir) for step in s["steps"] if 3 in step["versions"]]
    assert resumed


@pytest.mark.requirement("synchronous-baseline", "async-switch")
def test_a_synchronous_run_takes_turns_on_shared_devices(
    policy: Path, runs: Any, tmp_path: Path
) -> None:
    """Its servers load snapshots, and its rows lie end to end: nothing of this is the laptop's way."""
    run_dir = tmp_path / "run"
    runs.train(
        "--config",
        "laptop",
        f"run_dir={run_dir}",
        f"policy.path={policy}",
        "allocation_mode=embedded[rollout]:d1|fsdp[actor]:d1",
        "cluster.n_inference_servers=0",
        "weight_update_mode=disk",
        "actor.row_layout=packed",
        "actor.frozen_modules=['model.visual']",
        "actor.gradient_checkpointing=true",
        "total_steps=2",
        "test_rollout.enabled=false",
        *runs.small,
    )
    steps = runs.lines(run_dir)
    assert [step["weights/version"] for step in steps] == [1, 2]
    assert all(step["off_policyness/max"] == 0 for step in steps)
    assert [step["publish/num_receivers"] for step in steps] == [1, 1]
    assert all(step["publish/broadcast_s"] == 0 < step["publish/num_bytes"] for step in steps)


def test_a_run_whose_sites_are_down_stops_and_says_so(
    policy: Path, runs: Any, tmp_path: Path
) -> None:
    tasks = tmp_path / "tasks.jsonl"
    line = {"url": "http://127.0.0.1:9/", "goal": "g", "answer": "a", "allow_private": True}
    lines = [json.dumps(line | {"name": f"down-{number}"}) for number in range(8)]
    tasks.write_text("\n".join(lines))
    process = runs.start(
        *("--config", "laptop", f"run_dir={tmp_path / 'run'}", f"policy.path={policy}"),
        *runs.small,
        *(f"tasks=[{{name='tasks:{tasks}'}}]", "test_rollout.enabled=false"),
        *("env.viewport_width=160", "env.viewport_height=224", "env.reset=none"),
        *("pixelstore.disk_dir=" + str(tmp_path / "pixels"), "rollout.max_attempts=1"),
    )
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 2, text
    assert (
        "share of faults must be at most 0.5 over 64 episodes, got 1.00 (navigation_error" in text
    )
    assert "nothing was saved yet, so there is nothing to continue" in text
    assert "run.log" in text
    assert "Traceback" not in text


@pytest.mark.requirement("everlasting-slots")
def test_whatever_is_killed_the_run_goes_on_and_an_interrupt_leaves_no_process(
    policy: Path, runs: Any, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    arguments = (
        *("--config", "laptop", f"run_dir={run_dir}", f"policy.path={policy}"),
        *("allocation_mode=embedded[rollout]:d2+fsdp[actor]:d1", "cluster.n_inference_servers=2"),
        *("total_steps=100000", "test_rollout.num_seeds=4", *runs.small),
    )
    # All rollout workers: the training one and the evaluating one.
    injections = [
        Injection(kind=kind, num_versions=3, kills_all=kind == "rollout worker") for kind in KINDS
    ]
    outcome = asyncio.run(
        inject_faults(train_command(arguments, run_dir), injections, rng=random.Random(0))
    )
    assert not outcome.problems
    assert [fault.kind for fault in outcome.faults] == list(KINDS)
    assert "worker-0 died; restart 1 of" in outcome.text
    assert re.search(r"server rollout/\d is lost; restart 1 of", outcome.text)
    assert "actor/0 is gone" in outcome.text
    assert outcome.text.count("resumed at version") == 2
    verdict = examine(run_dir)
    assert not verdict.problems
    assert verdict.num_updates > 3 * len(KINDS) - 3
    assert verdict.num_episodes > 0
