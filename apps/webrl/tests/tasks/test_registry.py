"""Tasks by name."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import msgspec
import pytest
from webrl.config import load_config
from webrl.errors import TaskError
from webrl.launch import run_tasks
from webrl.tasks import (
    ORACLE_TASKS,
    Task,
    load_task,
    load_tasks,
    miniwob_names,
    oracle,
    task_names,
)


def test_tasks_come_in_the_order_asked_for() -> None:
    tasks = load_tasks(["miniwob/click-tab", "miniwob/click-test-2"])
    assert [task.full_name for task in tasks] == ["miniwob/click-tab", "miniwob/click-test-2"]


def test_every_listed_name_loads() -> None:
    tasks = load_tasks(task_names())
    assert len(tasks) >= len(miniwob_names()) > 100
    assert {task.full_name for task in tasks} == set(task_names())


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("miniwob/click-tests-2", "'miniwob/click-test-2'"),
        ("click-dialog", "'miniwob/click-dialog'"),
        ("minwob/click-tab", "'miniwob/click-tab'"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest_one(name: str, nearest: str) -> None:
    with pytest.raises(TaskError, match="task must be the name of a known task") as caught:
        load_task(name)
    assert f"Did you mean {nearest}?" in str(caught.value)


def test_a_name_like_nothing_points_to_the_list() -> None:
    with pytest.raises(TaskError, match="List the names with: webrl tasks"):
        load_task("zzzzzzzzzzzzzzzzz")


def test_tasks_cross_process_borders() -> None:
    task = load_task("miniwob/click-test-2")
    assert pickle.loads(pickle.dumps(task)) == task
    assert msgspec.json.decode(msgspec.json.encode(task), type=Task) == task


def test_steps_must_be_positive() -> None:
    with pytest.raises(TaskError, match="max_steps must be >= 1, got 0"):
        Task(suite="web", name="x", url="http://a.example/", goal="g", max_steps=0)


def test_a_page_that_restarts_in_place_needs_a_script() -> None:
    with pytest.raises(TaskError, match="start_script must be set when reset is 'keep_page'"):
        Task(suite="web", name="x", url="/x", goal="g", reset="keep_page")


def test_a_task_needs_a_goal_from_somewhere() -> None:
    with pytest.raises(TaskError, match="goal must be set when start_script is None"):
        Task(suite="web", name="x", url="/x")


def test_a_task_without_an_oracle_says_which_have_one() -> None:
    with pytest.raises(TaskError, match="task must have an oracle, got 'miniwob/drag-box'"):
        oracle(load_task("miniwob/drag-box"))
    assert all(oracle(task) for task in load_tasks(ORACLE_TASKS))


def test_two_files_that_share_a_name_of_a_task_are_refused_with_both_places(
    tmp_path: Path,
) -> None:
    line = {"name": "find-price", "url": "https://a.example/", "goal": "g", "answer": "1"}
    names: list[str] = []
    for folder in ("a", "b"):
        file = tmp_path / f"{folder}.jsonl"
        file.write_text(json.dumps(line))
        names.append(f"tasks:{file}")
    with pytest.raises(TaskError) as caught:
        load_tasks(names)
    assert "'web/find-price' from both" in str(caught.value)
    assert all(name in str(caught.value) for name in names)
    config = load_config("laptop", ["env.reset=none", f"tasks={json.dumps(names)}"]).config
    with pytest.raises(TaskError, match="must have a name of its own"):
        run_tasks.test_tasks(config)
    entries = f"[{{name='{names[0]}', split='train'}}, {{name='{names[1]}', split='test'}}]"
    apart = load_config("laptop", ["env.reset=none", f"tasks={entries}"]).config
    assert run_tasks.test_tasks(apart) == run_tasks.train_tasks(apart)
