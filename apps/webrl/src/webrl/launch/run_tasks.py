"""The tasks of a run as its configuration changes them: limits, page size, reset."""

from __future__ import annotations

import msgspec

from webrl.config import TaskSection, WebRLConfig
from webrl.tasks import Task, Viewport, load_tasks, refuse_shared_names


def train_tasks(config: WebRLConfig) -> tuple[Task, ...]:
    """Return the tasks with the limits of training episodes.

    Raises:
        TaskError: A task can not be had, or not with these settings, or two share a name.
    """
    return tuple(task for _, task in weighed_tasks(config))


def test_tasks(config: WebRLConfig) -> tuple[Task, ...]:
    """Return the tasks with the limits of evaluation episodes; raises as `train_tasks`."""
    tasks = [
        (entry.name, task)
        for entry in config.tasks
        if entry.split != "train"
        for task in _tasks(config, entry, entry.test_max_steps or entry.max_steps, is_test=True)
    ]
    refuse_shared_names(tasks)
    return tuple(task for _, task in tasks)


def weighed_tasks(config: WebRLConfig) -> list[tuple[TaskSection, Task]]:
    """Return the tasks to train on, each with the entry that brings it and its weight."""
    tasks = [
        (entry, task)
        for entry in config.tasks
        if entry.split != "test"
        for task in _tasks(config, entry, entry.max_steps)
    ]
    refuse_shared_names((entry.name, task) for entry, task in tasks)
    return tasks


def _tasks(
    config: WebRLConfig, entry: TaskSection, max_steps: int | None, *, is_test: bool = False
) -> list[Task]:
    changes: dict[str, object] = {}
    width, height = config.env.viewport_width, config.env.viewport_height
    if width is not None and height is not None:
        changes["viewport"] = Viewport(width, height)
    if config.env.reset is not None:
        changes["reset"] = config.env.reset
    if config.env.settle_timeout_s is not None:
        changes["settle_s"] = config.env.settle_timeout_s
    return [
        msgspec.structs.replace(
            task,
            max_steps=max_steps or (is_test and task.test_max_steps) or task.max_steps,
            **changes,
        )
        for task in load_tasks([entry.name])
    ]
