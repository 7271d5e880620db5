"""Words that this repository uses, and words that it does not."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Find

CODE = (
    "packages/**/*.py",
    "apps/**/*.py",
    "benchmarks/**/*.py",
    "examples/*.py",
    "tests/**/*.py",
)
PROSE = ("*.md", "docs/**/*.md", "packages/**/*.md", "apps/**/*.md", "benchmarks/**/*.md")
OTHER = ("**/*.toml", "Makefile", ".ci/*", ".github/**/*", ".pre-commit-config.yaml")

STALE_POLICY = re.compile(
    r"(?i)(^|_)old_?(log|prob|polic|weight|ratio|actor|model|param|value|advantage)"
)
"""Identifiers that call the behavior or the proximal policy by an ambiguous name."""
UNFINISHED = re.compile(
    r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b|NotImplemented" + "Error"
)
"""Marks of what is not done; put together here so that this file does not hold them."""
PLACES = re.compile(
    r"(?<![\w.:/-])/(?:home|Users|root|work|workspaces?|mnt|media|srv|scratch|data)/[\w.-]+"
    r"|py" + r"pi\.org|files\.python" + r"hosted"
)
"""Absolute home, workspace and storage folders of any machine, and hosts of package indexes."""


def tokens_of(file: Path) -> list[tokenize.TokenInfo]:
    return list(tokenize.generate_tokens(io.StringIO(file.read_text(encoding="utf-8")).readline))


def lines_with(pattern: re.Pattern[str], files: list[Path], root: Path) -> list[str]:
    return [
        f"{file.relative_to(root)}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def test_policies_are_behavior_proximal_and_current(find: Find, root: Path) -> None:
    breaches = [
        f"{file.relative_to(root)}:{token.start[0]}: {token.string}"
        for file in find(*CODE)
        for token in tokens_of(file)
        if token.type == tokenize.NAME and STALE_POLICY.search(token.string)
    ]
    assert not breaches, "\n".join(breaches)


def test_prose_names_policies_alike(find: Find, root: Path) -> None:
    pattern = re.compile(r"(?i)\bold[ _-](policy|log-?probs?|weights version)\b")
    breaches = lines_with(pattern, find(*PROSE), root)
    assert not breaches, "\n".join(breaches)


def test_nothing_is_left_unfinished(find: Find, root: Path) -> None:
    breaches = lines_with(UNFINISHED, find(*CODE, *PROSE), root)
    assert not breaches, "\n".join(breaches)


def test_nothing_names_a_place_of_one_machine(find: Find, root: Path) -> None:
    breaches = lines_with(PLACES, find(*CODE, *PROSE, *OTHER), root)
    assert not breaches, "\n".join(breaches)


def test_comments_are_ascii(find: Find, root: Path) -> None:
    breaches = [
        f"{file.relative_to(root)}:{token.start[0]}: {token.string}"
        for file in find("packages/*/src/**/*.py", "apps/*/src/**/*.py")
        for token in tokens_of(file)
        if token.type == tokenize.COMMENT and not token.string.isascii()
    ]
    assert not breaches, "\n".join(breaches)


def test_library_tests_do_not_wait_for_time_to_pass(find: Find, root: Path) -> None:
    pattern = re.compile(r"\btime\.sleep\(|\basyncio\.sleep\((?!0\))")
    breaches = lines_with(pattern, find("packages/*/tests/**/*.py"), root)
    assert not breaches, "\n".join(breaches)


def test_nothing_is_mocked_by_patching(find: Find, root: Path) -> None:
    pattern = re.compile(r"\bmock\.patch|import mock\b|from unittest import mock")
    files = [file for file in find(*CODE) if file.name != Path(__file__).name]
    breaches = lines_with(pattern, files, root)
    assert not breaches, "\n".join(breaches)
