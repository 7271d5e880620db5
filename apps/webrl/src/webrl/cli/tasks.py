"""`webrl tasks`: the tasks that a configuration can name."""

from __future__ import annotations

import argparse

from rich.console import Console

from webrl.cli.command import Commands

__all__ = ["add_command"]


def add_command(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "tasks", help="list the tasks", description="List the tasks that a configuration can name."
    )
    parser.add_argument("filter", nargs="?", default="", help="only names that hold this text")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """List one task a line: suite, name, steps, page size."""
    # The task package is loaded by the commands that need it only.
    from webrl.tasks import available_tasks  # noqa: PLC0415

    for task in available_tasks():
        if arguments.filter in task.name:
            console.print(
                f"{task.suite:<9} {task.name:<28} {task.max_steps:>3} steps  "
                f"{task.viewport.width} x {task.viewport.height}"
            )
    return 0
