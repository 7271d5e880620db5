"""The form of a key: `px-<run tag>-<shard>-<digest>`.

Invariants: a key is an opaque JSON-safe `str`; it is unique across shards, nodes and runs; it
says which shard holds it, so that no directory is asked.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

RUN_TAG_CHARS = 8
KEY = re.compile(r"px-([0-9a-f]{8})-([0-9]{1,6})-([0-9a-f]{32})")
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@=+-]{0,127}")


class ParsedKey(NamedTuple):
    """The parts of a key."""

    run_tag: str
    """First characters of the hash of the run's id."""
    shard: int
    """Index of the shard that holds it."""
    digest: str
    """Content address of the image."""


def run_tag_of(run_id: str) -> str:
    """Return the short hex tag that all keys of a run carry.

    Raises:
        ValueError: `run_id` is empty, too long, or has characters that a file name can't hold.
    """
    if not RUN_ID.fullmatch(run_id):
        raise ValueError(
            "run_id must be 1 to 128 letters, digits or ._:@=+-, starting with a letter or digit, "
            f"got {run_id!r}. Use the run's folder name."
        )
    return hashlib.sha256(run_id.encode()).hexdigest()[:RUN_TAG_CHARS]


def make_key(run_tag: str, shard: int, digest: str) -> str:
    """Return the key of one image in one shard."""
    return f"px-{run_tag}-{shard}-{digest}"


def parse_key(key: str) -> ParsedKey:
    """Return the parts of a key.

    Raises:
        TypeError: `key` is not a string (an image, say).
        ValueError: The string has not the form of a key.
    """
    if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"a key must be a str from put(), got {type(key).__name__}. Pass keys, not images."
        )
    match = KEY.fullmatch(key)
    if match is None:
        raise ValueError(f"a key must be a string from put(), got {key!r}. Pass it unchanged.")
    return ParsedKey(match[1], int(match[2]), match[3])


def require_trajectory_id(trajectory_id: str) -> None:
    """Pass silently when a trajectory has a name that a database gives back as it was.

    Raises:
        TypeError: The name is not a string.
        ValueError: It is empty, or holds half of a surrogate pair.
    """
    if not trajectory_id:
        raise ValueError("trajectory_id must be a name, got ''. Use the episode's id.")
    if not isinstance(trajectory_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"trajectory_id must be a str, got {trajectory_id!r}. Use the episode's id."
        )
    try:
        trajectory_id.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"trajectory_id must be text, got {trajectory_id!r}. Use the episode's id."
        ) from error
