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
from webrl.rehearse.targets import CONTROLLER, KINDS
from webrl.rehearse.verdict import examine

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.browser, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def trained(policy: Path, runs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run of two updates on two ranks and two servers that reached its end."""
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    runs.train(
        "--config",
        "laptop",
        f"run_dir={run_dir}",
        f"policy.path={policy}",
        "allocation_mode=embedded[rollout]:d2+fsdp[actor]:d2",
        "cluster.n_inference_servers=2",
        "total_steps=2",
        "test_rollout.num_seeds=4",
        "test_rollout.num_final_seeds=8",
        "test_rollout.interval_s=1",
        *runs.small,
    )
    return run_dir


@pytest.mark.requirement(
    "ray-scheduler", "fan-out", "xccl-broadcast", "generation-overlaps-training"
)
def test_two_servers_and_two_ranks_train_publish_and_evaluate(trained: Path, runs: Any) -> None:
    steps = runs.lines(trained)
    assert [step["weights/version"] for step in steps] == [1, 2]
    # Every publish reached both servers.
    assert all(step["publish/num_receivers"] == 2 for step in steps)
    assert all(step["off_policyness/max"] <= 1 for step in steps)
    assert all(step["rollout/lost_rows"] == 0 for step in steps)
    samples = runs.samples(trained)
    assert samples
    for sample in samples:
        for step in sample["steps"]:
            assert len(step["output_ids"]) == len(step["behavior_logprobs"])
            assert len(step["output_ids"]) == len(step["versions"])
            assert set(step["versions"]) <= {0, 1}
            assert all(image["key"] in sample["files"] for image in step["images"])
    evaluations = [json.loads(line) for line in (trained / "evaluations.jsonl").open()]
    assert evaluations[-1]["version"] == 2
    assert evaluations[-1]["num_episodes"] == 8
    assert all(found["low"] <= found["mean"] <= found["high"] for found in evaluations)
    assert len({(found["version"], found["num_episodes"]) for found in evaluations}) == len(
        evaluations
    )
    newest = latest_complete_checkpoint(trained / "checkpoints" / "policy")
    assert newest is not None
    assert newest.name == "version_2"
    assert (newest / "config.json").is_file()


@pytest.mark.requirement("everlasting-slots")
def test_a_resumed_run_goes_on_whatever_is_killed_and_an_interrupt_leaves_no_process(
    trained: Path, runs: Any
) -> None:
    arguments = ("--resume", str(trained), "total_steps=100000", "test_rollout.interval_s=30")
    # All rollout workers: the training one and the evaluating one. One update shows that the run
    # works, three that new episodes are trained on after a fault, and not those that were there.
    injections = [
        Injection(
            kind=kind,
            num_versions=1 if kind in (KINDS[0], CONTROLLER) else 3,
            kills_all=kind == "rollout worker",
        )
        for kind in KINDS
    ]
    outcome = asyncio.run(
        inject_faults(train_command(arguments, trained), injections, rng=random.Random(0))
    )
    assert not outcome.problems
    assert [fault.kind for fault in outcome.faults] == list(KINDS)
    assert "worker-0 died; restart 1 of" in outcome.text
    assert re.search(r"server rollout/\d is lost; restart 1 of", outcome.text)
    assert re.search(r"actor/\d is gone", outcome.text)
    assert "resumed at version 2" in outcome.text
    assert outcome.text.count("resumed at version") == 3
    verdict = examine(trained)
    assert not verdict.problems
    assert verdict.num_updates > 3 * len(KINDS) - 5
    assert verdict.num_episodes > 0
    steps = runs.lines(trained)
    # What had finished is trained on first, then what the resumed version samples.
    assert re.search(r"[1-9]\d* finished episodes need not run again", outcome.text)
    assert steps[-1]["rollout/restored_episodes"] > 0
    assert steps[2]["off_policyness/max"] <= 1
    assert [s for s in runs.samples(trained) for step in s["steps"] if 2 in step["versions"]]


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
        "rollout.outage_patience_s=2",
    )
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 2, text
    assert "in a row that did not (navigation_error" in text
    assert "on 127.0.0.1:9, the only site of late" in text
    assert "nothing was saved yet, so there is nothing to continue" in text
    assert "run.log" in text
    assert "Traceback" not in text
