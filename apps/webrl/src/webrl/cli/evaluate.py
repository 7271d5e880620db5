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
from webrl.evaluation.report import parts_of, write_report
from webrl.evaluation.statistics import EvaluationResult

MOST_TASKS = 40
"""More tasks, or sites that ended episodes, are told in the files of --out alone."""


def add_command(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "eval",
        help="evaluate a checkpoint on held-out seeds",
        description="Run a checkpoint on held-out seeds and print its success with the interval.",
    )
    parser.add_argument("policy", type=Path, help="checkpoint folder, or a run's folder")
    parser.add_argument("--config", help="packaged name or TOML file; the run's own when left out")
    parser.add_argument(
        "--seeds",
        type=int,
        default=NUM_SEEDS,
        help="number of held-out seeds, spread over the tasks; 0 takes every task once",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write a table, JSON and a picture there"
    )
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
    if arguments.seeds < 0:
        raise PreflightError(f"--seeds must be >= 0, got {arguments.seeds}. Use 512.")
    _check_folder(arguments.out)
    loaded = load_config(str(source), arguments.overrides)
    try:
        result = evaluate(loaded, policy, version=version, num_seeds=arguments.seeds)
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted")
        return 130
    files = [] if arguments.out is None else write_report(arguments.out, result)
    if arguments.json is not None:
        write_json(msgspec.to_builtins(result), arguments.json, console)
        return 0
    _print(result, console)
    for file in files:
        console.print(f"written: {file}")
    return 0


def _check_folder(folder: Path | None) -> None:
    """Refuse a folder for results that can not be one, before hours are spent on them.

    Raises:
        PreflightError: A file stands there, or it can not be made.
    """
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PreflightError(
            f"--out must be a folder that can be written, got {str(folder)!r}: {error.strerror}. "
            "Name another one."
        ) from error


def _print(result: EvaluationResult, console: Console) -> None:
    console.print(f"{result.describe()}, in {result.duration_s:.0f} s")
    for part, shares in parts_of(result):
        for name, share in shares.items():
            console.print(
                f"  {part} {name}: {share.mean:.3f} [{share.low:.3f}, {share.high:.3f}], "
                f"{share.num_episodes} episodes"
            )
    if result.pass_at:
        shown = ", ".join(f"pass@{k} {value:.3f}" for k, value in result.pass_at.items())
        console.print(f"  {shown}")
    if len(result.by_task) <= MOST_TASKS:
        for task, mean in result.by_task.items():
            console.print(f"  {task}: {mean:.3f}")
    for site, lost in list(result.by_lost_site.items())[:MOST_TASKS]:
        console.print(f"  lost on {site}: {lost.num_episodes}, {lost.kind}: {lost.message}")


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
