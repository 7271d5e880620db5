"""Reads what the model wrote. Strict: an answer that is not of the agreed form is no answer.

Invariant: no verdict is guessed from words; only a JSON object of exactly the agreed fields counts,
alone or in one code fence.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

_T = TypeVar("_T")
_FENCE = re.compile(r"```(?:json)?\s*\n(.*)\n\s*```", re.DOTALL)


class YesOrNo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to a question about the episode."""

    reason: str
    """Why, before the verdict so that the model thinks first."""
    verdict: bool
    """Yes or no."""


class Relevant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to the question which screenshots matter."""

    relevant: list[int]
    """Their numbers, from 1."""


class MalformedAnswerError(ValueError):
    """Internal: the model did not answer in form; worth asking again."""


def read_yes_or_no(text: str) -> YesOrNo:
    """Return the verdict in `text`.

    Raises:
        MalformedAnswerError: `text` is something else.
    """
    return _read(text, YesOrNo)


def read_relevant(num_screenshots: int) -> Callable[[str], tuple[int, ...]]:
    """Return what reads the numbers of relevant screenshots out of `num_screenshots`.

    The reader returns indices from 0, ascending, and raises `MalformedAnswerError` for a text of
    another form and for a number that no screenshot has.
    """

    def read(text: str) -> tuple[int, ...]:
        numbers = _read(text, Relevant).relevant
        if not all(1 <= number <= num_screenshots for number in numbers):
            raise MalformedAnswerError(
                f"relevant must hold numbers of 1 to {num_screenshots}, got {numbers}"
            )
        return tuple(sorted({number - 1 for number in numbers}))

    return read


def _read(text: str, kind: type[_T]) -> _T:
    body = text.strip()
    fenced = _FENCE.fullmatch(body)
    try:
        return msgspec.json.decode(fenced.group(1) if fenced else body, type=kind)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise MalformedAnswerError(f"the answer is not of the agreed form: {error}") from error
