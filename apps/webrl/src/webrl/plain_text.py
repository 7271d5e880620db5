"""Text of pages, tasks and policies on its way into a chat: words, never control tokens.

Invariant: whatever a tokenizer or chat template reads as mark-up (a turn, an image, a tool call) is
taken apart, and what comes out is valid Unicode. Every text that was not written by us goes through
`plain` before it stands in a prompt or in a question to the judge.
"""

from __future__ import annotations

import re

_MARK_UP = re.compile(
    r"""
      <(?=[|/!?A-Za-z_\uff5c])   # <|im_end|>, </s>, <image>, <start_of_turn>, <\uff5cUser\uff5c>, <<SYS>>
    | \[(?=/?[A-Z][A-Z_0-9]+\])  # [INST], [/INST], [IMG], [SEP]
    """,
    re.VERBOSE,
)

_CREDENTIALS = re.compile(r"(?<=://)[^/?#\s@]*@")


def plain(text: str) -> str:
    """Return `text` with a blank in every piece of mark-up: `<|im_end|>` becomes `< |im_end|>`."""
    return _MARK_UP.sub(r"\g<0> ", without_surrogates(text))


def plain_line(text: str) -> str:
    """Return `text` as `plain` does, on one line."""
    return plain(" ".join(text.split()))


def without_surrogates(text: str) -> str:
    """Return `text` with each half of a broken pair replaced: no encoder takes one."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def without_credentials(text: str) -> str:
    """Return `text` with user name and password left out of each address in it."""
    return _CREDENTIALS.sub("", text)
