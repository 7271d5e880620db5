"""The tasks of a run as its configuration chooses and changes them: subsets, limits, page size, reset.

Invariant: a file is read once in a process, and chosen from once, however often its tasks are asked for.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from webrl.config import StepLimitsSection, TaskSection, WebRLConfig
from webrl.errors import TaskError
from webrl.tasks import WEBGYM_SUITE, Task, TaskFile, Viewport, load_task_set, refuse_shared_names


class _Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What a configuration changes of every task."""

    viewport: Viewport | None
    reset: str | None
    settle_s: float | None
    step_limits: StepLimitsSection
    blocklist: tuple[str, ...]
    is_test: bool


def train_tasks(config: WebRLConfig) -> tuple[Task, ...]:
    """Return the tasks with the limits of training episodes.

    Raises:
        TaskError: A task can not be had, or not with these settings, or two share a name.
    """
    return tuple(task for _, task in weighed_tasks(config))


def test_tasks(config: WebRLConfig) -> tuple[Task, ...]:
    """Return the tasks with the limits of evaluation episodes; raises as `train_tasks`."""
    return tuple(task for _, task in _tasks_but(config, "train", is_test=True))


def weighed_tasks(config: WebRLConfig) -> list[tuple[TaskSection, Task]]:
    """Return the tasks to train on, each with the entry that brings it and its weight."""
    return _tasks_but(config, "test", is_test=False)


def bad_rows(config: WebRLConfig) -> list[str]:
    """Return one sentence for each file with lines that are passed over."""
    sentences: list[str] = []
    for entry in config.tasks:
        found = _task_set(entry)
        if found.bad_rows:
            first = found.bad_rows[0]
            sentences.append(
                f"{entry.name}: {len(found.bad_rows)} of {found.num_rows} lines are no task and are "
                f"passed over, the first one line {first.line}: {first.problem} "
                f"List them with: webrl tasks {entry.name}"
            )
    return list(dict.fromkeys(sentences))


def _tasks_but(config: WebRLConfig, split: str, *, is_test: bool) -> list[tuple[TaskSection, Task]]:
    width, height = config.env.viewport_width, config.env.viewport_height
    changes = _Changes(
        viewport=None if width is None or height is None else Viewport(width, height),
        reset=config.env.reset,
        settle_s=config.env.settle_timeout_s,
        step_limits=config.step_limits,
        blocklist=config.sites.blocklist,
        is_test=is_test,
    )
    taken = [
        (f"{entry.name} (tasks[{number}])", entry, _changed(entry, changes, _task_set(entry)))
        for number, entry in enumerate(config.tasks)
        if entry.split != split
    ]
    if len(taken) > 1:
        refuse_shared_names((place, task) for place, _, tasks in taken for task in tasks)
    return [(entry, task) for _, entry, tasks in taken for task in tasks]


def _task_set(entry: TaskSection) -> TaskFile:
    return load_task_set(entry.name, max_bad_share=entry.max_bad_share)


@functools.lru_cache(maxsize=16)
def _changed(entry: TaskSection, changes: _Changes, found: TaskFile) -> tuple[Task, ...]:
    """Return the tasks that an entry chooses, with what the configuration changes."""
    left = _not_blocked(found.tasks, entry, changes.blocklist) if changes.blocklist else found.tasks
    return tuple(_change(task, entry, changes) for task in chosen(left, entry))


def _not_blocked(
    tasks: Sequence[Task], entry: TaskSection, blocklist: Sequence[str]
) -> Sequence[Task]:
    blocked = {name.strip().lower() for name in blocklist}
    left = [task for task in tasks if blocked.isdisjoint(_site_labels(task))]
    if not left:
        raise TaskError(
            f"sites.blocklist must leave a task of {entry.name!r}, got {sorted(blocked)}. Shorten it, "
            "or remove the entry."
        )
    return left


def _change(task: Task, entry: TaskSection, changes: _Changes) -> Task:
    max_steps = (changes.is_test and task.test_max_steps) or task.max_steps
    if task.suite == WEBGYM_SUITE:
        max_steps = changes.step_limits.of(task.difficulty, is_test=changes.is_test)
    if entry.max_steps is not None:
        max_steps = entry.max_steps
    if changes.is_test and entry.test_max_steps is not None:
        max_steps = entry.test_max_steps
    wanted: dict[str, object] = {"max_steps": max_steps, "name": f"{entry.prefix}{task.name}"}
    for key in ("viewport", "reset", "settle_s"):
        if getattr(changes, key) is not None:
            wanted[key] = getattr(changes, key)
    if all(getattr(task, key) == value for key, value in wanted.items()):
        return task
    return msgspec.structs.replace(task, **wanted)


def chosen(tasks: Sequence[Task], entry: TaskSection) -> Sequence[Task]:
    """Return the tasks that an entry's keys choose, in their order.

    Raises:
        TaskError: A key names what no task has, or more tasks are asked for than there are.
    """
    left = tasks
    for key, of in _LABELS.items():
        wanted: Sequence[str] = getattr(entry, key)
        if wanted:
            left = _with_label(left, key, of, wanted)
    if entry.num_tasks is None:
        return left
    if entry.num_tasks > len(left):
        raise TaskError(
            f"tasks.num_tasks must be <= {len(left)}, what the other keys leave of {entry.name!r}, "
            f"got {entry.num_tasks}. Lower it, or choose less narrowly."
        )
    drawn = random.Random(entry.subset_seed).sample(range(len(left)), entry.num_tasks)
    return [left[index] for index in sorted(drawn)]


def _with_label(
    tasks: Sequence[Task],
    key: str,
    labels_of: Callable[[Task], Sequence[str]],
    wanted: Sequence[str],
) -> list[Task]:
    known = Counter(label for task in tasks for label in labels_of(task))
    names = {name.strip().lower() for name in wanted}
    for name in names.difference(known):
        most = ", ".join(f"{label} ({count})" for label, count in known.most_common(8))
        raise TaskError(
            f"tasks.{key} must name what the file has, got {name!r}. Most often it has: "
            f"{most or 'none'}."
        )
    return [task for task in tasks if not names.isdisjoint(labels_of(task))]


def _site_labels(task: Task) -> Sequence[str]:
    """Return a task's host and the domains above it: `shop.example.org`, `example.org`."""
    host = task.site.partition(":")[0]
    parts = host.split(".")
    return [".".join(parts[first:]) for first in range(max(1, len(parts) - 1))] if host else []


def _label_of(name: str) -> Callable[[Task], Sequence[str]]:
    def labels(task: Task) -> Sequence[str]:
        label: str | None = getattr(task, name)
        return () if label is None else (label.lower(),)

    return labels


_LABELS: dict[str, Callable[[Task], Sequence[str]]] = {
    "difficulties": _label_of("difficulty"),
    "domains": _label_of("domain"),
    "subdomains": _label_of("subdomain"),
    "sites": _site_labels,
}
