"""`webrl configs`: the packaged configurations."""

from __future__ import annotations

import argparse
import difflib
import tomllib

from rich.console import Console

from webrl.cli.command import Commands, add_json, write_json
from webrl.config import packaged_configs, reference_page
from webrl.errors import ConfigError


def add_command(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "configs",
        help="list the packaged configurations, or print one",
        description="List the packaged configurations, or print one as TOML to start from.",
    )
    parser.add_argument("name", nargs="?", help="configuration to print")
    parser.add_argument("--keys", action="store_true", help="describe every key, as Markdown")
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """List or print."""
    packaged = packaged_configs()
    name: str | None = arguments.name
    if arguments.keys:
        console.print(reference_page(), end="")
        return 0
    if name is None and arguments.json is not None:
        write_json(packaged, arguments.json, console)
        return 0
    if name is None:
        width = max(len(known) for known in packaged)
        for known, text in packaged.items():
            console.print(f"{known:<{width}}  {text.splitlines()[0].lstrip('# ')}")
        return 0
    if name not in packaged:
        close = difflib.get_close_matches(name, packaged, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"There are: {', '.join(packaged)}."
        raise ConfigError(f"name must be a packaged configuration, got {name!r}. {hint}")
    if arguments.json is not None:
        write_json(tomllib.loads(packaged[name]), arguments.json, console)
        return 0
    console.print(packaged[name].rstrip())
    return 0
