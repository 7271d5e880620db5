"""What the modules of the single commands share: the parser that they add to, and their JSON."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, TypeAlias

from rich.console import Console

from webrl.config import all_keys
from webrl.errors import PreflightError

STDOUT = "-"
"""What `--json` holds when no file is named."""
_JSON_FILE = ".json"
_CLOSE = 0.6
"""Least similarity of a command or an option that is suggested."""


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors say which command or option was probably meant."""

    _words: Sequence[str] = ()

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse, and remember the words for the message of an error."""
        self._words = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(self._words, namespace or argparse.Namespace())

    def error(self, message: str) -> NoReturn:
        """Print usage, error and suggestion; exit with 2."""
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: error: {message}{self._hint(message)}\n")

    def _hint(self, message: str) -> str:
        wrong = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if wrong is not None:
            return _did_you_mean(wrong[1], re.findall(r"[\w-]+", wrong[2]))
        options = re.findall(r"--[a-z-]+", self.format_usage())
        for word in self._words:
            name = word.partition("=")[0]
            if not name.startswith("--") or any(option.startswith(name) for option in options):
                continue
            key = name[2:].replace("-", "_")
            if key in all_keys():
                return f". Settings have no dashes: {key}=value"
            return _did_you_mean(name, options)
        return ""


def _did_you_mean(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=_CLOSE)
    return f". Did you mean {close[0]!r}?" if close else ""


# argparse offers no public name for what `add_subparsers` returns.
Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"  # pyright: ignore[reportPrivateUsage]
"""What `CommandParser.add_subparsers` returns."""


def plain_console(*, is_error: bool = False) -> Console:
    """Return a console that prints text as it is, to standard output or error."""
    return Console(stderr=is_error, soft_wrap=True, highlight=False, markup=False, emoji=False)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Let a command take `key=value` words."""
    # Without a default argparse calls them required.
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="settings that win"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Let a command answer in JSON; the option means the same in each of them."""
    parser.add_argument(
        "--json",
        metavar="FILE.json",
        help="print the result as JSON, or write it to a file whose name ends in .json",
    )


def with_json_places(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with the place behind each `--json` spelled out.

    The word behind `--json` is its file when it ends in `.json`; else nothing is swallowed.
    """
    done: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--json":
            has_file = bool(left) and left[0].endswith(_JSON_FILE)
            word = f"--json={left.pop(0) if has_file else STDOUT}"
        done.append(word)
    return done


def write_json(value: object, place: str, console: Console) -> None:
    """Print `value` as JSON, or write it to the file.

    Raises:
        PreflightError: The file can not be written.
    """
    text = json.dumps(value, indent=1)
    if place == STDOUT:
        console.print(text)
        return
    try:
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        Path(place).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise PreflightError(
            f"--json must name a file that can be written, got {place!r}: {error.strerror}."
        ) from error
