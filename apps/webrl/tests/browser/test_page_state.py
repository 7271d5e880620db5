"""A task's patterns decide, and hold nobody up."""

from __future__ import annotations

import asyncio
import logging

import pytest
from webrl.browser.page_state import judge_answer, matches
from webrl.tasks import Task


def _task(answer: str | None) -> Task:
    return Task(suite="web", name="t", url="http://x/", goal="g", answer=answer, final_url="x")


@pytest.mark.parametrize(
    ("pattern", "answer", "reward"),
    [
        (r"\$?19(\.00)?", " $19.00\n", 1.0),
        (r"\$?19(\.00)?", "about $19", 0.0),
        ("a.b", "A\nB", 1.0),
        (None, "anything", 0.0),
    ],
)
def test_an_answer_must_match_in_full(pattern: str | None, answer: str, reward: float) -> None:
    assert asyncio.run(judge_answer(_task(pattern), answer)) == reward


def test_a_pattern_that_explodes_is_no_match_and_lets_others_work(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> tuple[bool, int]:
        num_turns = 0
        async with asyncio.TaskGroup() as group:
            matching = group.create_task(matches(r"(a|a)+", "a" * 60 + "!"))
            while not matching.done():
                await asyncio.sleep(0.01)
                num_turns += 1
        return matching.result(), num_turns

    caplog.set_level(logging.WARNING)
    found, num_turns = asyncio.run(main())
    assert not found
    assert num_turns > 2
    assert "takes too long" in caplog.text
