"""`webrl doctor`: what the machine offers, or whether a live server can be trained on."""

from __future__ import annotations

import argparse
import asyncio

from rich.console import Console

from webrl.cli.command import Commands
from webrl.machine_check import check_machine


def add_command(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "doctor",
        help="check this machine, or a live inference server",
        description="Check what the machine offers, or compare a live server's log-probs with the "
        "trainer's; exit code 1 when a run could not start.",
    )
    parser.add_argument("--url", help="address of an idle inference server to check instead")
    parser.add_argument("--policy", help="checkpoint folder that it serves; default: its own word")
    parser.add_argument("--dtype", help="dtype of its weights; default: its own word")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print one line for each check; 1 when something required is missing."""
    if arguments.url:
        # torch and transformers take seconds to import: only this option pays for them.
        from webrl.server_check import check_server  # noqa: PLC0415

        checks = asyncio.run(
            check_server(arguments.url, policy_path=arguments.policy, dtype=arguments.dtype)
        )
    else:
        checks = check_machine()
    for check in checks:
        mark = "ok  " if check.is_ok else ("FAIL" if check.is_required else "note")
        console.print(f"{mark} {check.name:<13} {check.detail}")
        if not check.is_ok and check.fix:
            console.print(f"     {'':<13} fix: {check.fix}")
    return int(any(not check.is_ok and check.is_required for check in checks))
