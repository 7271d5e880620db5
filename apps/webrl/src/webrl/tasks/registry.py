"""Tasks by name.

Invariant: a name that is not known fails with the nearest known one, before anything starts.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
from collections.abc import Iterable
from pathlib import Path

from webrl.errors import TaskError
from webrl.tasks.faults import FAULT_CASES
from webrl.tasks.faults import SUITE as FAULT_SUITE
from webrl.tasks.miniwob import SUITE, miniwob_names, miniwob_task
from webrl.tasks.task import Task
from webrl.tasks.task_file import PREFIX, TaskFile, load_task_file
from webrl.tasks.webgym import PREFIX as WEBGYM_PREFIX
from webrl.tasks.webgym import load_webgym_file

FILE_PREFIXES = (PREFIX, WEBGYM_PREFIX)
"""What stands before the path of a file of tasks."""


def task_names() -> tuple[str, ...]:
    """Return every name that `load_tasks` takes, sorted, as `suite/name`."""
    faults = [f"{FAULT_SUITE}/{name}" for name in FAULT_CASES]
    return tuple(sorted([*faults, *(f"{SUITE}/{name}" for name in miniwob_names())]))


def load_tasks(names: Iterable[str]) -> list[Task]:
    """Return the tasks of the given names, in the given order.

    Args:
        names: Full names such as `miniwob/click-test-2`, or `tasks:PATH` and `webgym:PATH` for
            those of a file.

    Raises:
        TaskError: A name is not known (the message holds the nearest one), a file is wrong, or two
            tasks share a name.
    """
    loaded = [(name, task) for name in names for task in load_task_set(name).tasks]
    refuse_shared_names(loaded)
    return [task for _, task in loaded]


def load_task_set(name: str, *, max_bad_share: float = 0.0) -> TaskFile:
    """Return the task of a name, or those of a file: `tasks:PATH` or `webgym:PATH`.

    Args:
        max_bad_share: Largest share of a file's lines that may be no task; they are passed over.

    Raises:
        TaskError: The name is not known (the message holds the nearest one), or the file is wrong.
    """
    path = next((name.removeprefix(p) for p in FILE_PREFIXES if name.startswith(p)), None)
    if path is None:
        return TaskFile(tasks=(load_task(name),))
    return _tasks_of_file(name, max_bad_share, _stamp(path))


@functools.lru_cache(maxsize=16)
def _tasks_of_file(name: str, max_bad_share: float, stamp: object) -> TaskFile:
    """Return the tasks of a file; a data set of hundreds of thousands is read once, not at each use."""
    del stamp
    if name.startswith(PREFIX):
        return load_task_file(name.removeprefix(PREFIX), max_bad_share=max_bad_share)
    return load_webgym_file(name.removeprefix(WEBGYM_PREFIX), max_bad_share=max_bad_share)


def _stamp(path: str) -> object:
    with contextlib.suppress(OSError, ValueError):
        found = Path(path).stat()
        return found.st_ino, found.st_size, found.st_mtime_ns
    return None


def refuse_shared_names(tasks: Iterable[tuple[str, Task]]) -> None:
    """Refuse tasks of one name from two places: results are kept by name.

    Args:
        tasks: Where each comes from, and the task.

    Raises:
        TaskError: Two share a name; the message holds both places.
    """
    places: dict[str, str] = {}
    for place, task in tasks:
        other = places.setdefault(task.full_name, place)
        if other != place:
            raise TaskError(
                f"task must have a name of its own, got {task.full_name!r} from both {other!r} and "
                f"{place!r}. Rename one, set tasks.prefix for one of the files, or let one train and the "
                "other one test (split)."
            )


def load_task(name: str) -> Task:
    """Return one task by its full name.

    Raises:
        TaskError: The name is not known; the message holds the nearest one.
    """
    suite, _, page = name.partition("/")
    if suite == SUITE and page in miniwob_names():
        return miniwob_task(page)
    if suite == FAULT_SUITE and page in FAULT_CASES:
        return FAULT_CASES[page].task
    known = task_names()
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    nearest = nearest or difflib.get_close_matches(f"{SUITE}/{name}", known, n=1, cutoff=0.5)
    fix = f"Did you mean {nearest[0]!r}?" if nearest else "List the names with: webrl tasks."
    raise TaskError(f"task must be the name of a known task, got {name!r}. {fix}")
