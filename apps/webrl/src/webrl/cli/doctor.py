"""`webrl doctor`: what the machine offers, or whether a live server can be trained on."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from rich.console import Console

from webrl.cli.command import Commands
from webrl.doctor import (
    Check,
    check_browser,
    check_disk,
    check_fonts,
    check_miniwob,
    check_package,
    check_python,
    check_sglang,
)

__all__ = ["add_command"]

_PACKAGES = ("torch", "ray", "transformers", "playwright")
_LAPTOP_BYTES = 1 << 30
"""Room that the laptop run asks for, rounded up."""
_BROWSER_START_S = 30.0
"""A browser that needs longer than this for its first page is broken."""


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
    checks = _check_server(arguments) if arguments.url else _check_machine()
    for check in checks:
        mark = "ok  " if check.is_ok else ("FAIL" if check.is_required else "note")
        console.print(f"{mark} {check.name:<13} {check.detail}")
        if not check.is_ok and check.fix:
            console.print(f"     {'':<13} fix: {check.fix}")
    return int(any(not check.is_ok and check.is_required for check in checks))


def _check_server(arguments: argparse.Namespace) -> list[Check]:
    # torch and transformers take seconds to import: only this option pays for them.
    from webrl.server_check import check_server  # noqa: PLC0415

    return asyncio.run(
        check_server(arguments.url, policy_path=arguments.policy, dtype=arguments.dtype)
    )


def _check_machine() -> list[Check]:
    checks = [
        check_python(),
        *(check_package(name) for name in _PACKAGES),
        check_miniwob(),
        check_fonts(),
        check_disk(Path("runs"), _LAPTOP_BYTES),
        check_sglang(),
        _check_gpu(),
    ]
    browser = check_browser()
    checks.append(asyncio.run(_start_browser(browser.detail)) if browser.is_ok else browser)
    return checks


async def _start_browser(path: str) -> Check:
    """Start the browser that was found and open an empty page."""
    from playwright.async_api import Error, async_playwright  # noqa: PLC0415

    fix = "Run webrl doctor with AWRL_CHROMIUM set to another Chromium, or reinstall it."
    try:
        async with asyncio.timeout(_BROWSER_START_S), async_playwright() as driver:
            browser = await driver.chromium.launch(executable_path=path)
            await (await browser.new_page()).goto("about:blank")
            detail = f"{path} starts, version {browser.version}"
            await browser.close()
    except (Error, TimeoutError) as error:
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else f"no page within {_BROWSER_START_S:g} s"
        return Check(name="browser", is_ok=False, detail=f"{path}: {reason}", fix=fix)
    return Check(name="browser", is_ok=True, detail=detail)


def _check_gpu() -> Check:
    """Look at what torch can use."""
    # torch takes seconds to import: only this command pays for it.
    import torch  # noqa: PLC0415

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        detail = "none; the laptop configuration needs none"
        return Check(name="gpu", is_ok=True, detail=detail, is_required=False)
    detail = f"{count} x {torch.cuda.get_device_name(0)}"
    return Check(name="gpu", is_ok=True, detail=detail, is_required=False)
