"""Tasks by name."""

from __future__ import annotations

import pickle

import msgspec
import pytest
from webrl.errors import TaskError
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
