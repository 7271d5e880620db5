"""The whole system on real parts: Chromium, Ray, the embedded server, FSDP, gloo."""

import os
import signal
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


def test_killed_browsers_and_workers_cost_their_episodes_and_an_interrupt_leaves_no_process(
    policy: Path, runs: Any, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    process = runs.start(
        "--config",
        "laptop",
        f"run_dir={run_dir}",
        f"policy.path={policy}",
        "total_steps=100000",
        "test_rollout.enabled=false",
        *runs.small,
    )

    def kill(is_victim: Callable[[psutil.Process], bool]) -> None:
        victims = [child for child in runs.descendants(process.pid) if is_victim(child)]
        assert victims
        for victim in victims:
            victim.kill()

    assert process.stdout is not None
    seen: list[str] = []
    blows = [_is_browser, _is_worker]
    next_blow = 2
    below: list[psutil.Process] = []
    for line in process.stdout:
        seen.append(line)
        version = int(line.split(" version ")[1].split()[0]) if " version " in line else 0
        if version < next_blow:
            continue
        if not blows:
            below = runs.descendants(process.pid)
            os.kill(process.pid, signal.SIGINT)
            break
        kill(blows.pop(0))
        next_blow = version + 3
    assert below, "".join(seen)
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert any("restart 1 of" in line for line in seen), "".join(seen)
    _, alive = psutil.wait_procs(below, timeout=10)
    assert not alive, [child.cmdline() for child in alive]
    assert latest_complete_checkpoint(run_dir / "checkpoints" / "trainer") is not None


def _is_browser(child: psutil.Process) -> bool:
    return "chromium" in child.name() and "--type=" not in " ".join(child.cmdline())


def _is_worker(child: psutil.Process) -> bool:
    return "ray::RolloutWorker" in " ".join(child.cmdline())
