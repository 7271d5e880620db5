"""`webrl doctor`: what the machine offers, or whether a live server can be trained on."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Console

from webrl.cli.command import Commands, add_json, add_settings, write_json
from webrl.config import load_config
from webrl.errors import PreflightError
from webrl.loopback import is_address
from webrl.machine_check import Check, check_machine

DTYPES = ("float32", "bfloat16", "float16")
"""What the weights of a server that is checked may be."""


def add_command(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "doctor",
        help="check this machine, or a live inference server",
        description="Check what the machine offers, run each part once, or compare a live "
        "server's log-probs with the trainer's; exit code 1 when a run could not start.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--run",
        action="store_true",
        dest="uses_parts",
        help="also use every part once: a tiny policy, a server, a generation, an actor, a page",
    )
    what.add_argument(
        "--config",
        help="packaged name or TOML file, with key=value settings: check the proxy and the browsers "
        "elsewhere that it names",
    )
    what.add_argument("--url", help="address of an idle inference server to check instead")
    parser.add_argument("--policy", help="checkpoint folder that it serves; default: its own word")
    parser.add_argument("--dtype", choices=DTYPES, help="of its weights; default: its own word")
    add_settings(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print one line for each check; 1 when something required is missing."""
    is_broken = False
    found: list[Check] = []
    for check in _checks(arguments):
        is_broken |= check.is_required and not check.is_ok
        found.append(check)
        if arguments.json is not None:
            continue
        mark = "ok  " if check.is_ok else ("FAIL" if check.is_required else "note")
        console.print(f"{mark} {check.name:<13} {check.detail}")
        if not check.is_ok and check.fix:
            console.print(f"     {'':<13} fix: {check.fix}")
    if arguments.json is not None:
        write_json([asdict(check) for check in found], arguments.json, console)
    return int(is_broken)


def _checks(arguments: argparse.Namespace) -> Iterator[Check]:
    url: str | None = arguments.url
    if arguments.config is not None:
        # Browsers bring Ray and the driver along: only this option pays for them.
        from webrl.reach_check import check_reach  # noqa: PLC0415

        yield from check_reach(load_config(arguments.config, arguments.overrides).config)
        return
    if arguments.overrides:
        raise PreflightError(
            f"key=value settings must come with --config, got {arguments.overrides[0]!r} alone. "
            "Add e.g. --config laptop."
        )
    if url is None:
        for name in ("policy", "dtype"):
            if getattr(arguments, name) is not None:
                raise PreflightError(f"--{name} must come with --url, got no --url. Add it.")
        yield from check_machine()
        if arguments.uses_parts:
            # The rollout client takes a second to import: only this option pays for it.
            from webrl.run_check import check_run  # noqa: PLC0415

            yield from check_run()
        return
    if not is_address(url):
        raise PreflightError(
            f"--url must be an address with http:// or https://, got {url!r}. "
            "Write e.g. http://127.0.0.1:30000."
        )
    # torch and transformers take seconds to import: only this option pays for them.
    from webrl.server_check import check_server  # noqa: PLC0415

    yield from asyncio.run(check_server(url, policy_path=arguments.policy, dtype=arguments.dtype))
