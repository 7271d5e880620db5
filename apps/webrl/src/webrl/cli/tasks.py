"""`webrl tasks`: the tasks that a configuration can name."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import msgspec
from rich.console import Console

from webrl.cli.command import Commands, add_json, write_json
from webrl.errors import TaskError
from webrl.tasks import FILE_PREFIXES, BadRow, Task, load_task_set, load_tasks, task_names


def add_command(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "tasks", help="list the tasks", description="List the tasks that a configuration can name."
    )
    parser.add_argument(
        "filter",
        nargs="?",
        default="",
        help="only names that hold this text; tasks:PATH or webgym:PATH for those of a file",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """List one task a line: name, page size, steps."""
    bad_rows: Sequence[BadRow] = ()
    tasks: Sequence[Task]
    if arguments.filter.startswith(FILE_PREFIXES):
        found = load_task_set(arguments.filter, max_bad_share=1.0)
        tasks, bad_rows = found.tasks, found.bad_rows
    else:
        tasks = [task for task in load_tasks(task_names()) if arguments.filter in task.full_name]
    if not tasks and not bad_rows:
        raise TaskError(
            f"filter must match a task, got {arguments.filter!r}. Leave it out for all."
        )
    if arguments.json is not None:
        write_json([msgspec.to_builtins(task) for task in tasks], arguments.json, console)
        return 0
    for task in tasks:
        size = f"{task.viewport.width}x{task.viewport.height}"
        console.print(f"{task.full_name:<40} {size:<9} at most {task.max_steps} steps")
    for row in bad_rows:
        console.print(f"line {row.line} is no task: {row.problem}")
    return 0
