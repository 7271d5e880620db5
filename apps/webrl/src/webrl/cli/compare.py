"""`webrl compare`: what asynchrony buys on this machine."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import datetime

from rich.console import Console

from webrl.cli.command import (
    STDOUT,
    Commands,
    add_json,
    add_settings,
    plain_console,
    write_json,
)
from webrl.config import load_config, resolve_run_dir
from webrl.errors import ConfigError
from webrl.machine_check import preflight

_INTERRUPTED = 130
_NUM_STEPS = 2
"""The first step is not counted, so a comparison needs another one."""


def add_command(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "compare",
        help="run a configuration asynchronously and synchronously",
        description=(
            "Run the same tasks, seeds, policy and trainer with the everlasting pool and with the "
            "synchronous one, and print both. total_steps says how long."
        ),
    )
    parser.add_argument("--config", required=True, help="packaged name or path of a TOML file")
    add_json(parser)
    add_settings(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run both modes and print their figures."""
    config = resolve_run_dir(
        load_config(arguments.config, arguments.overrides), datetime.now()
    ).config
    if config.is_synchronous:
        raise ConfigError(
            "cluster.n_inference_servers must be > 0 to compare, got 0. The synchronous side is "
            "made from the asynchronous configuration: give that one."
        )
    if config.total_steps < _NUM_STEPS:
        raise ConfigError(
            f"total_steps must be >= {_NUM_STEPS} to compare, got {config.total_steps}. "
            "The first step is not counted."
        )
    preflight(config, is_resumed=False)
    # Ray, torch and transformers take seconds to import: only a real run pays for them.
    from webrl.run.compare import compare  # noqa: PLC0415

    place: str | None = arguments.json
    figures = compare(config, plain_console(is_error=True) if place == STDOUT else console)
    if figures is None:
        return _INTERRUPTED
    if place is not None:
        write_json({mode.mode: asdict(mode) for mode in figures}, place, console)
    return 0
