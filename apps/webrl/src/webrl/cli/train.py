"""`webrl train`: start a run, continue one, or show what one would do."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path

from rich.console import Console

from webrl.api import start
from webrl.cli.command import Commands, add_settings, plain_console
from webrl.config import (
    LoadedConfig,
    WebRLConfig,
    describe_plan,
    load_config,
    resolve_run_dir,
    to_toml,
)
from webrl.errors import ConfigError, PreflightError
from webrl.launch.run_tasks import bad_rows
from webrl.machine_check import check_enough_tasks, problem_text, run_checks
from webrl.memory_budget import describe_memory
from webrl.screenshot_cost import describe_screenshots

CONFIG_FILE = "config.toml"
"""Name of the resolved configuration within a run's folder, as `RunFolders` has it."""
RUNS_FOLDER = Path("runs")
"""Where `--resume` without a folder looks for the newest run."""
NEWEST = "newest"
"""What `--resume` means without a folder."""


def add_command(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "train",
        help="train a policy",
        description="Train a policy. Settings come from --config and key=value arguments.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", help="packaged name (webrl configs) or path of a TOML file")
    source.add_argument(
        "--resume",
        nargs="?",
        const=NEWEST,
        metavar="RUN",
        help="continue the run in this folder; the newest one below runs/ when left out",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the resolved configuration with the plan as comments, and what is missing here",
    )
    add_settings(parser)
    parser.set_defaults(run=run)


def find_latest_run(folder: Path) -> Path:
    """Return the run below `folder` whose configuration was written last.

    Raises:
        ConfigError: There is none.
    """
    files = sorted(folder.glob(f"*/{CONFIG_FILE}"), key=lambda file: file.stat().st_mtime_ns)
    if not files:
        raise ConfigError(
            f"--resume must find a run below {str(folder)!r}, got none. Name its folder."
        )
    return files[-1].parent


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Check everything that can be checked beforehand, then train."""
    is_resumed = arguments.resume is not None
    loaded = (
        _load_resumed(arguments.resume, arguments.overrides)
        if is_resumed
        else load_config(arguments.config, arguments.overrides)
    )
    resolved = resolve_run_dir(loaded, datetime.now())
    if arguments.dry_run:
        return _show(loaded, resolved.config, console, is_resumed=is_resumed)
    return start(resolved, resume=is_resumed, console=console)


def _show(loaded: LoadedConfig, config: WebRLConfig, console: Console, *, is_resumed: bool) -> int:
    """Print the configuration with the plan as comments, a file that loads; then what is missing.

    What a packaged configuration leaves to its user (the policy's folder, files of tasks) and what
    another machine may have (GPUs, SGLang, room, a browser) does not fail a plan.
    """
    console.print(to_toml(loaded.config))
    for line in (
        *describe_plan(loaded.config).splitlines(),
        "",
        *describe_memory(config),
        *describe_screenshots(config),
    ):
        console.print(f"# {line}".rstrip())
    failed = [check for check in run_checks(config, is_resumed=is_resumed) if not check.is_ok]
    errors = plain_console(is_error=True)
    if all(check.name != "tasks" for check in failed):
        check_enough_tasks(config)
        for warning in bad_rows(config):
            errors.print(f"warning: {warning}")
    template = _named(load_config(loaded.name).config) if loaded.is_packaged else {}
    named = _named(config)
    wrong = [
        check
        for check in failed
        if check.name in named and template.get(check.name) != named[check.name]
    ]
    for check in failed:
        if check not in wrong:
            errors.print(f"missing here: {problem_text(check)}")
    if wrong:
        raise PreflightError("\n".join(problem_text(check) for check in wrong))
    return 0


def _named(config: WebRLConfig) -> dict[str, object]:
    """Return what a configuration names and must exist wherever it runs, by the check's name."""
    return {
        "policy": config.policy.path,
        "memory": config.cluster.gpu_memory_bytes,
        "tasks": config.tasks,
        "tracker": config.logging.tracker,
    }


def _load_resumed(folder: str, overrides: list[str]) -> LoadedConfig:
    """Return the configuration that a run was started with, in that run's folder."""
    if "=" in folder and not Path(folder).exists():
        # `--resume key=value`: the parser took the first setting for the folder.
        folder, overrides = NEWEST, [folder, *overrides]
    run_dir = find_latest_run(RUNS_FOLDER) if folder == NEWEST else Path(folder)
    file = run_dir / CONFIG_FILE
    if not file.is_file():
        raise ConfigError(
            f"--resume must name a run's folder with a {CONFIG_FILE}, got {folder!r}. "
            "Start a new run with --config."
        )
    return load_config(str(file), [*overrides, f"run_dir={run_dir}"])
