"""`webrl eval`: success of a checkpoint on held-out seeds."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import msgspec
from rich.console import Console

from webrl.api import NUM_SEEDS, evaluate
from webrl.cli.command import Commands, add_json, add_settings, write_json
from webrl.config import load_config
from webrl.errors import PreflightError


def add_command(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "eval",
        help="evaluate a checkpoint on held-out seeds",
        description="Run a checkpoint on held-out seeds and print its success with the interval.",
    )
    parser.add_argument("policy", type=Path, help="checkpoint folder, or a run's folder")
    parser.add_argument("--config", help="packaged name or TOML file; the run's own when left out")
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS, help="number of held-out seeds")
    add_json(parser)
    add_settings(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Evaluate and print."""
    policy, version, run_config = _find_policy(arguments.policy)
    source = arguments.config or run_config
    if source is None:
        raise PreflightError(
            f"--config must be given for a checkpoint outside of a run, got {str(policy)!r}. "
            "Add e.g. --config laptop."
        )
    if arguments.seeds < 1:
        raise PreflightError(f"--seeds must be >= 1, got {arguments.seeds}. Use 512.")
    loaded = load_config(str(source), arguments.overrides)
    try:
        result = evaluate(loaded, policy, version=version, num_seeds=arguments.seeds)
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted")
        return 130
    if arguments.json is not None:
        write_json(msgspec.to_builtins(result), arguments.json, console)
        return 0
    console.print(f"{result.describe()}, in {result.duration_s:.0f} s")
    for task, share in result.by_task.items():
        console.print(f"  {task}: {share:.3f}")
    return 0


def _find_policy(path: Path) -> tuple[Path, int, Path | None]:
    """Return checkpoint, version and the run's configuration, if `path` is or lies in a run."""
    from awrl_trainer import latest_complete_checkpoint  # noqa: PLC0415

    if (path / "config.toml").is_file():
        newest = latest_complete_checkpoint(path / "checkpoints" / "policy")
        policy = newest if newest is not None else path / "policy"
        return policy, _version_of(policy), path / "config.toml"
    if not (path / "config.json").is_file():
        raise PreflightError(
            f"policy must be a checkpoint or a run's folder, got {str(path)!r}. "
            "Give e.g. runs/NAME or runs/NAME/checkpoints/policy/version_20."
        )
    parents = [parent / "config.toml" for parent in path.resolve().parents[:3]]
    return path, _version_of(path), next((file for file in parents if file.is_file()), None)


def _version_of(path: Path) -> int:
    tail = path.name.rpartition("_")[2]
    return int(tail) if tail.isdigit() else 0
