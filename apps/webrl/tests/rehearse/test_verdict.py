"""What the files of a run give away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from webrl.config import load_config, to_toml
from webrl.launch import component_configs
from webrl.rehearse.verdict import examine
from webrl.rollout.trajectory import EpisodeTask

CONFIG = load_config("laptop", ["gconfig.n_samples=4", "rollout.consumer_batch_size=8"]).config


def group(index: int) -> dict[str, Any]:
    """A line of `episodes.jsonl`, as the data order has it."""
    stream = component_configs.task_stream(CONFIG)
    members: list[dict[str, Any]] = []
    for request in stream.group(index):
        assert isinstance(request.payload, EpisodeTask)
        task = {"task": request.payload.task, "seed": request.payload.seed}
        members.append({"episode_id": request.episode_id, **task})
    return {"group_id": str(index), "members": members}


def batch(step: int, *groups: int, age: int = 0) -> dict[str, Any]:
    """A line of `batches.jsonl`."""
    names = [f"{index}/{member}" for index in groups for member in range(4)]
    return {"step": step, "version": step - 1, "off_policyness": dict.fromkeys(names, age)}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of two updates in which nothing is wrong."""
    (tmp_path / "config.toml").write_text(to_toml(CONFIG))
    write(tmp_path, "metrics", {"step": 1}, {"step": 2})
    write(tmp_path, "batches", batch(1, 0, 1), batch(2, 2, 3, age=2))
    write(tmp_path, "episodes", *(group(index) for index in range(5)))
    return tmp_path


def write(folder: Path, name: str, *lines: dict[str, Any]) -> None:
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_sound_run_has_no_problem(run_dir: Path) -> None:
    with (run_dir / "episodes.jsonl").open("a") as file:
        file.write('{"group_id": "5", "mem')  # killed in the middle of a line
    verdict = examine(run_dir)
    assert verdict.problems == []
    assert (verdict.num_updates, verdict.num_episodes, verdict.max_off_policyness) == (2, 16, 2)


def test_an_episode_in_two_updates_is_seen(run_dir: Path) -> None:
    write(run_dir, "batches", batch(1, 0, 1), batch(2, 1, 2))
    assert examine(run_dir).problems == ["4 episodes were trained on twice"]


def test_a_member_and_its_refill_are_one_episode(run_dir: Path) -> None:
    line = batch(2, 2, 3)
    line["off_policyness"]["1/3~1"] = 0
    write(run_dir, "batches", batch(1, 0, 1), line)
    refilled = group(4)
    refilled["members"][3]["episode_id"] += "~1"
    write(run_dir, "episodes", *(group(index) for index in range(4)), refilled)
    assert examine(run_dir).problems == ["1 episodes were trained on twice"]


def test_an_episode_above_the_bound_is_seen(run_dir: Path) -> None:
    write(run_dir, "batches", batch(1, 0, 1), batch(2, 2, 3, age=3))
    assert examine(run_dir).problems == ["an episode was 3 versions old, eta is 2"]


def test_a_missing_step_is_seen(run_dir: Path) -> None:
    write(run_dir, "batches", batch(1, 0, 1), batch(3, 2, 3))
    assert examine(run_dir).problems == ["1 steps are missing or doubled"]


def test_an_episode_at_a_wrong_place_is_seen(run_dir: Path) -> None:
    wrong = group(1)
    wrong["members"][2]["seed"] += 1
    write(run_dir, "episodes", group(0), wrong, group(2))
    assert examine(run_dir).problems == ["1 episodes are out of the data order"]


def test_groups_that_a_resume_would_skip_are_seen(run_dir: Path) -> None:
    write(run_dir, "episodes", group(0), group(8))
    [problem] = examine(run_dir).problems
    assert problem == "7 groups of the data order are left out, at most 6 can be under way"
