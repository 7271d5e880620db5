"""Entry point of the `webrl` command: parse, dispatch, and turn user errors into one message.

Invariant: an error of the user or of the machine is a message on stderr and exit code 2, never a
traceback; anything else that escapes is our own mistake and keeps its traceback.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Sequence

from webrl.cli import (
    compare,
    configs,
    doctor,
    evaluate,
    judge,
    policy,
    rehearse,
    simulate,
    tasks,
    train,
)
from webrl.cli.command import CommandParser, plain_console, with_json_places
from webrl.errors import WebRLError

USER_ERROR = 2
"""Exit code of everything that the user can fix."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells use it."""

UV_RUN = "RAY_ENABLE_UV_RUN_RUNTIME_ENV"
"""Read when Ray is imported. Under `uv run` Ray would else pack the working directory, whatever lies
in it, and start each worker through `uv run`; on this machine the workers share the environment."""

RAY_AUTH_MODE = "RAY_AUTH_MODE"
"""Read when Ray is imported too: a local cluster answers only who knows its token."""

_COMMANDS = (train, evaluate, judge, compare, simulate, rehearse, tasks, configs, policy, doctor)


def build_parser() -> CommandParser:
    """Return the parser of all commands."""
    parser = CommandParser(
        prog="webrl",
        description="Fully asynchronous reinforcement learning of multimodal web agents.",
    )
    version = importlib.metadata.version("webrl")
    parser.add_argument("--version", action="version", version=f"webrl {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for command in _COMMANDS:
        command.add_command(commands)
    for own in commands.choices.values():
        own.set_defaults(parser=own)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: words after `webrl`; those of the process when `None`.

    Returns:
        The exit code: 0 for success, 2 for what the user can fix, 130 after Ctrl-C, 143 after SIGTERM.
    """
    if "RAY_ADDRESS" not in os.environ:
        os.environ.setdefault(UV_RUN, "0")
        if "ray" not in sys.modules:
            os.environ.setdefault(RAY_AUTH_MODE, "token")
    words = with_json_places(sys.argv[1:] if arguments is None else arguments)
    parser = build_parser()
    if not words:
        parser.print_help(sys.stderr)
        return USER_ERROR
    parsed = _parse(parser, words)
    console = plain_console()
    try:
        return parsed.run(parsed, console)
    except WebRLError as error:
        errors = plain_console(is_error=True)
        for line in "\n".join((str(error), *getattr(error, "__notes__", ()))).splitlines():
            errors.print(f"webrl: {line}" if not line.startswith("  ") else line)
        return USER_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED


def _parse(parser: CommandParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse; settings may stand anywhere, also behind options, where argparse takes no more words."""
    parsed, rest = parser.parse_known_args(arguments)
    is_settings = all("=" in word and not word.startswith("-") for word in rest)
    if rest and not (is_settings and "overrides" in parsed):
        parsed.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        parsed.overrides = [*parsed.overrides, *rest]
    return parsed
