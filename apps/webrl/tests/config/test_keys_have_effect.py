"""A key that nothing reads is a knob that does nothing: none may exist."""

from __future__ import annotations

import ast
from pathlib import Path

import webrl
from webrl.config import all_keys, load_config

SOURCES = Path(webrl.__file__).parent
SYSTEM = tuple(
    f"{folder}/*.py"
    for folder in (
        "cluster",
        "servers",
        "rollout",
        "training",
        "evaluation",
        "records",
        "launch",
        "run",
    )
)
READERS = (
    *SYSTEM,
    "cli/*.py",
    "judge/*.py",
    "config/run.py",
    "config/sections.py",
    "config/published.py",
)
"""Where keys turn into what a run does. Checks and reports of the configuration do not count."""


def attributes_read(readers: tuple[str, ...]) -> set[str]:
    """Return every attribute name that the readers read outside of `contradictions`."""
    read: set[str] = set()
    pending: list[ast.AST] = [
        ast.parse(file.read_text(encoding="utf-8"))
        for reader in readers
        for file in sorted(SOURCES.glob(reader))
    ]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef) and node.name == "contradictions":
            continue
        if isinstance(node, ast.Attribute):
            read.add(node.attr)
        pending += ast.iter_child_nodes(node)
    return read


def test_every_key_is_read_by_the_system() -> None:
    read = attributes_read(READERS)
    unread = [key for key in all_keys() if key.rsplit(".", 1)[-1] not in read]
    # There is one scheduler; its key is there so that published configurations load.
    assert set(unread) <= {"scheduler.type"}, "\n".join(unread)


def test_the_arguments_of_sglang_servers_reach_them() -> None:
    assert "sglang_arguments" in attributes_read(SYSTEM)


def test_sglang_is_started_with_the_limits_of_the_configuration() -> None:
    words = load_config("webgym_48_16").config.inference.sglang_arguments
    assert " ".join(words) == (
        "--context-length 16384 --max-running-requests 48 --mem-fraction-static 0.75"
    )
