r"""Tasks of one's own: an address, a goal and an evaluator, one JSON object a line.

    {"name": "find-price", "url": "https://shop.example/", "goal": "What does the red lamp cost?",
     "answer": "\\$?19(\\.00)?"}

Invariants:

* every line is checked before anything starts; an error names the file, the line and the rule;
* a task needs at least one evaluator: `answer` and `final_url` are regular expressions that must
  match in full, `state_script` is a JavaScript expression that gives `{done, reward, reason}`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from webrl.errors import TaskError
from webrl.tasks.task import Task, Viewport

SUITE = "web"
PREFIX = "tasks:"
"""A name `tasks:PATH` stands for every task of the file."""

_DEFAULT_VIEWPORT = Viewport(1280, 720)


class _Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    url: str
    goal: str
    answer: str | None = None
    final_url: str | None = None
    state_script: str | None = None
    start_script: str | None = None
    success_threshold: float = 0.5
    max_steps: int = 30
    viewport: Viewport | tuple[int, int] = _DEFAULT_VIEWPORT
    settle_s: float = 10.0
    allow_private: bool = False


def load_task_file(path: str | Path) -> list[Task]:
    """Return the tasks of a JSON-lines file, in its order; blank lines do not count.

    Raises:
        TaskError: The file can not be read, holds no task, or a line is not one; the message
            holds file and line.
    """
    return read_tasks(path, lambda line: _task(msgspec.json.decode(line, type=_Line)))


def read_tasks(path: str | Path, build: Callable[[bytes], Task]) -> list[Task]:
    """Return what `build` makes of each line of a file; blank lines do not count.

    Args:
        build: Makes a task of one line; may raise `TaskError` and `msgspec.DecodeError`.

    Raises:
        TaskError: The file can not be read, holds no task, names one twice, or a line is not
            one; the message holds file and line.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise TaskError(
            f"task file must be readable, got {str(path)!r}: {reason}. Check the path."
        ) from error
    tasks: dict[str, Task] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            task = build(line)
        except (msgspec.DecodeError, TaskError) as error:
            raise TaskError(f"{path}, line {number}: {error}") from error
        if task.name in tasks:
            raise TaskError(
                f"{path}, line {number}: name must be unique, got {task.name!r} again. Rename one."
            )
        tasks[task.name] = task
    if not tasks:
        raise TaskError(f"task file must hold a task, got none in {str(path)!r}. Add a line.")
    return list(tasks.values())


def _task(line: _Line) -> Task:
    if not line.url.startswith(("http://", "https://", "/")):
        raise TaskError(
            f"url must start with http:// or https://, got {line.url!r}. Give the whole address."
        )
    if not line.goal.strip():
        raise TaskError("goal must not be blank, got ''. Say what the policy shall do.")
    fields = msgspec.structs.asdict(line)
    if isinstance(line.viewport, tuple):
        fields["viewport"] = Viewport(*line.viewport)
    return Task(suite=SUITE, reset="new_context", **fields)
