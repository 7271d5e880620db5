"""`webrl init-policy`: make a tiny policy and warm it up."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from rich.console import Console

from webrl.cli.command import Commands
from webrl.errors import ConfigError, PreflightError


def add_command(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "init-policy",
        help="make a tiny policy, warmed up on synthetic pages",
        description="Make a tiny Qwen3-VL policy and save it as a Hugging Face checkpoint.",
    )
    parser.add_argument("out_dir", type=Path, help="new folder for the checkpoint")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and pages")
    parser.add_argument(
        "--updates", type=int, default=None, help="warm-up steps; 0 leaves random weights"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Make the policy and say where it is."""
    out_dir: Path = arguments.out_dir
    if out_dir.exists() and (not out_dir.is_dir() or any(out_dir.iterdir())):
        raise PreflightError(f"out_dir must be a new folder, got {str(out_dir)!r}. Name another.")
    # torch and transformers take seconds to import: only this command pays for them.
    from awrl_trainer import new_folder  # noqa: PLC0415

    from webrl.policy import InitPolicyConfig, WarmupConfig, init_policy  # noqa: PLC0415

    try:
        warmup = WarmupConfig()
        if arguments.updates is not None:
            warmup = dataclasses.replace(warmup, num_updates=arguments.updates)
        config = InitPolicyConfig(seed=arguments.seed, warmup=warmup)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    try:
        with new_folder(out_dir, is_marked=False) as folder:
            init_policy(folder, config)
    except OSError as error:
        raise PreflightError(
            f"out_dir must be writable, got {str(out_dir)!r}: {error}. Name another."
        ) from error
    console.print(f"policy saved in {out_dir}")
    return 0
