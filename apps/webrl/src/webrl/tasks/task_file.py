r"""Tasks of one's own: an address, a goal and an evaluator, one JSON object a line.

    {"name": "find-price", "url": "https://shop.example/", "goal": "What does the red lamp cost?",
     "answer": "\\$?19(\\.00)?"}

Invariants:

* every line is checked before anything starts; an error names the file, the line and the rule;
* lines that are no task are passed over and told, up to a share of the file; more are an error;
* a task needs at least one evaluator: `answer` and `final_url` are regular expressions that must
  match in full, `state_script` is a JavaScript expression that gives `{done, reward, reason}`.
"""

from __future__ import annotations

import math
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


class BadRow(msgspec.Struct, frozen=True):
    """A line of a file that is no task, and was passed over."""

    line: int
    """Its number, from 1."""
    problem: str
    """The rule that it breaks."""


class TaskFile(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What a file of tasks holds; two of them are never equal."""

    tasks: tuple[Task, ...]
    """In the order of the file."""
    bad_rows: tuple[BadRow, ...] = ()
    """Lines that are no task."""

    @property
    def num_rows(self) -> int:
        """Return the lines that are not blank."""
        return len(self.tasks) + len(self.bad_rows)


def load_task_file(path: str | Path, *, max_bad_share: float = 0.0) -> TaskFile:
    """Return the tasks of a JSON-lines file; blank lines do not count.

    Args:
        max_bad_share: Largest share of lines that may be no task.

    Raises:
        TaskError: The file can not be read, holds no task, or too many lines that are none; the
            message holds file and line.
    """
    return read_tasks(path, _build, max_bad_share=max_bad_share)


def read_tasks(
    path: str | Path, build: Callable[[bytes], Task], *, max_bad_share: float = 0.0
) -> TaskFile:
    """Return what `build` makes of each line of a file; blank lines do not count.

    A line that names a task once more is no task.

    Args:
        build: Makes a task of one line; may raise `TaskError` and `msgspec.DecodeError`.
        max_bad_share: Largest share of lines that may be no task.

    Raises:
        TaskError: The file can not be read, holds no task, or too many lines that are none; the
            message holds file and line.
    """
    tasks: dict[str, Task] = {}
    bad_rows: list[BadRow] = []
    try:
        with Path(path).open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not (text := line.strip()):
                    continue
                try:
                    task = build(text)
                except (msgspec.DecodeError, TaskError) as error:
                    bad_rows.append(BadRow(number, str(error)))
                    continue
                if task.name in tasks:
                    problem = f"name must be unique, got {task.name!r} again. Rename one."
                    bad_rows.append(BadRow(number, problem))
                    continue
                tasks[task.name] = task
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise TaskError(
            f"task file must be readable, got {str(path)!r}: {reason}. Check the path."
        ) from error
    found = TaskFile(tasks=tuple(tasks.values()), bad_rows=tuple(bad_rows))
    _refuse_bad(path, found, max_bad_share)
    return found


def _refuse_bad(path: str | Path, found: TaskFile, max_bad_share: float) -> None:
    num_bad = len(found.bad_rows)
    if num_bad > max_bad_share * found.num_rows:
        first = found.bad_rows[0]
        text = f"{path}, line {first.line}: {first.problem.rstrip('.')}."
        if num_bad > 1 or max_bad_share:
            text += (
                f" Of {found.num_rows} lines {num_bad} are no task; tasks.max_bad_share = "
                f"{max_bad_share:g} allows {math.floor(max_bad_share * found.num_rows)}."
            )
        raise TaskError(text)
    if not found.tasks:
        raise TaskError(f"task file must hold a task, got none in {str(path)!r}. Add a line.")


_DECODER = msgspec.json.Decoder(_Line)


def _build(text: bytes) -> Task:
    return _task(_DECODER.decode(text))


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
