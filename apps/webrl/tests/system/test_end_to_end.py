"""The whole system on real parts: Chromium, Ray, the embedded server, FSDP, gloo."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from awrl_trainer import latest_complete_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.browser, pytest.mark.timeout(1200)]


def test_two_servers_and_two_ranks_train_publish_evaluate_and_resume(
    policy: Path, runs: Any, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    runs.train(
        "--config",
        "laptop",
        f"run_dir={run_dir}",
        f"policy.path={policy}",
        "allocation_mode=embedded[rollout]:d2+fsdp[actor]:d2",
        "cluster.n_inference_servers=2",
        "total_steps=3",
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
    newest = latest_complete_checkpoint(run_dir / "checkpoints" / "policy")
    assert newest is not None
    assert newest.name == "version_3"
    assert (newest / "config.json").is_file()

    text = runs.train("--resume", str(run_dir), "total_steps=4")
    assert "resumed at version 3" in text
    steps = runs.lines(run_dir)
    assert [step["weights/version"] for step in steps] == [1, 2, 3, 4]
    # BR-54: the first episodes after a resume are of the resumed version.
    assert steps[-1]["off_policyness/max"] <= 1
    resumed = [s for s in runs.samples(run_dir) for step in s["steps"] if 3 in step["versions"]]
    assert resumed


def test_a_synchronous_run_takes_turns_on_shared_devices(
    policy: Path, runs: Any, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    runs.train(
        "--config",
        "laptop",
        f"run_dir={run_dir}",
        f"policy.path={policy}",
        "allocation_mode=embedded[rollout]:d1|fsdp[actor]:d1",
        "cluster.n_inference_servers=0",
        "total_steps=2",
        "test_rollout.enabled=false",
        *runs.small,
    )
    steps = runs.lines(run_dir)
    assert [step["weights/version"] for step in steps] == [1, 2]
    assert all(step["off_policyness/max"] == 0 for step in steps)


def test_whatever_is_killed_the_run_goes_on_and_an_interrupt_leaves_no_process(
    policy: Path, runs: Any, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    process = runs.start(
        "--config",
        "laptop",
        f"run_dir={run_dir}",
        f"policy.path={policy}",
        "allocation_mode=embedded[rollout]:d2+fsdp[actor]:d1",
        "cluster.n_inference_servers=2",
        "total_steps=100000",
        "test_rollout.num_seeds=4",
        *runs.small,
    )
    blows: list[Callable[[list[psutil.Process]], list[psutil.Process]]] = [
        _browsers,
        _named("ray::RolloutWorker"),  # the training one and the evaluating one
        _rollout_server,
        _named("ray::ShardActor"),
        _named("ray::UpdateEngine"),
    ]
    text = _strike(runs, process, blows)
    assert "worker-0 died; restart 1 of" in text
    assert "server rollout/0 is lost; restart 1 of" in text
    assert "actor/0 is gone" in text
    assert "resumed at version" in text

    below = runs.descendants(process.pid)
    # Ray's own agents outlive it; the next run ends them.
    agents = [child for child in below if child.name().endswith("Agent")]
    process.kill()
    process.wait(timeout=10)
    _, alive = psutil.wait_procs([child for child in below if child not in agents], timeout=30)
    assert not alive, [child.cmdline() for child in alive]

    process = runs.start("--resume", str(run_dir))
    text = _strike(runs, process, [])
    assert "resumed at version" in text
    assert not any(child.is_running() for child in agents)
    below = runs.descendants(process.pid)
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    _, alive = psutil.wait_procs(below, timeout=10)
    assert not alive, [child.cmdline() for child in alive]

    lines = (run_dir / "batches.jsonl").read_text().splitlines()
    batches = [json.loads(line) for line in lines]
    trained = [episode for batch in batches for episode in batch["off_policyness"]]
    assert len(trained) == len(set(trained)), "an episode was trained on twice"
    assert all(age <= 1 for batch in batches for age in batch["off_policyness"].values())
    steps = [step["step"] for step in runs.lines(run_dir)]
    assert steps == list(range(1, len(steps) + 1))
    assert [batch["step"] for batch in batches][: len(steps)] == steps


def _strike(
    runs: Any,
    process: subprocess.Popen[str],
    blows: list[Callable[[list[psutil.Process]], list[psutil.Process]]],
) -> str:
    """Kill one kind of process after the other, three trained versions apart.

    Returns:
        What the run printed until three versions after the last blow.
    """
    assert process.stdout is not None
    seen: list[str] = []
    versions_to_go = 3
    for line in process.stdout:
        seen.append(line)
        versions_to_go -= " version " in line and "success" in line
        if versions_to_go > 0:
            continue
        if not blows:
            return "".join(seen)
        victims = blows.pop(0)(runs.descendants(process.pid))
        assert victims
        for victim in victims:
            victim.kill()
        versions_to_go = 3
    raise AssertionError(f"the run ended:\n{''.join(seen)}")


def _browsers(children: list[psutil.Process]) -> list[psutil.Process]:
    return [
        child
        for child in children
        if "chromium" in child.name() and "--type=" not in " ".join(child.cmdline())
    ]


def _named(part: str) -> Callable[[list[psutil.Process]], list[psutil.Process]]:
    return lambda children: [child for child in children if part in " ".join(child.cmdline())]


def _rollout_server(children: list[psutil.Process]) -> list[psutil.Process]:
    """Return the first server of the rollout role, which is the one that writes its log."""
    servers = [child for child in children if "webrl.embedded" in child.cmdline()]
    return [
        server
        for server in servers
        if any(file.path.endswith("/rollout-0.log") for file in server.open_files())
    ]
