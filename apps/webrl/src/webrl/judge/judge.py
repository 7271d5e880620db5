"""The verdict on one episode.

Invariants:

* whether the site shut the agent out is asked first, of episodes without an answer too: such an
  episode is a fault, not a failure;
* an episode without an answer is no success, and no further question is asked;
* every criterion is asked, also after one that does not hold: the support of the answer once,
  each fact of the rubric, the reference answer where there is one; success needs all of them;
* one question without an answer and there is no verdict (`JudgeError`).

The questions on one episode go out together; `max_concurrent` bounds them over all episodes.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from awrl_rollout import Clock, RetryPolicy

from webrl.judge.answer import YesOrNo, read_relevant, read_yes_or_no
from webrl.judge.chat import ChatClient, Question
from webrl.judge.config import JudgeConfig
from webrl.judge.errors import JudgeError
from webrl.judge.questions import (
    blocked_question,
    fact_question,
    reference_question,
    relevance_question,
    supported_question,
)
from webrl.judge.screenshots import newest, spread, without_repeats
from webrl.judge.verdict import Criterion, Evidence, Verdict

if TYPE_CHECKING:
    from types import TracebackType


class Judge:
    """Judges episodes. Used as `async with Judge(config) as judge:`."""

    def __init__(
        self,
        config: JudgeConfig,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        """Prepare the judge; nothing is asked yet. The arguments are those of `ChatClient`.

        Raises:
            JudgeError: the environment lacks the key.
        """
        self._config = config
        self.client = ChatClient(config, clock=clock, rng=rng, retry=retry)
        """Asks the server; counts what it asked."""

    async def __aenter__(self) -> Judge:
        """Open the connections."""
        await self.client.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connections."""
        await self.client.__aexit__(exc_type, exc, traceback)

    async def judge(self, evidence: Evidence) -> Verdict:
        """Return the verdict on an episode.

        Raises:
            JudgeError: there is none: the server failed, was late, or answered out of form.
        """
        try:
            async with asyncio.timeout(self._config.deadline_s):
                return await self._judge(evidence)
        except TimeoutError as error:
            limit = self._config.deadline_s
            raise JudgeError(f"the judge gave no verdict within {limit:g} s") from error
        except BaseExceptionGroup as group:
            failed, other = group.split(JudgeError)
            if failed is None or other is not None:
                raise
            raise _first(failed) from group

    async def _judge(self, evidence: Evidence) -> Verdict:
        distinct = without_repeats(evidence.screenshots)
        shown = spread(distinct, self._config.max_screenshots)
        if (await self._ask(blocked_question(evidence, shown))).verdict:
            return Verdict(is_blocked=True)
        if evidence.answer is None:
            return Verdict(is_blocked=False)
        questions = self._questions(evidence, await self._select(evidence, distinct))
        async with asyncio.TaskGroup() as group:
            asked = {name: group.create_task(self._ask(q)) for name, q in questions.items()}
        criteria = [
            Criterion(name=name, is_met=task.result().verdict, reason=task.result().reason)
            for name, task in asked.items()
        ]
        return Verdict(is_blocked=False, criteria=tuple(criteria))

    def _questions(self, evidence: Evidence, screenshots: list[str]) -> dict[str, Question]:
        questions = {"supported": supported_question(evidence, screenshots)}
        for number, fact in enumerate(evidence.rubric.facts, start=1):
            questions[f"fact {number}"] = fact_question(evidence, fact, screenshots)
        if evidence.rubric.reference_answer is not None:
            questions["reference"] = reference_question(evidence)
        return questions

    async def _select(self, evidence: Evidence, distinct: list[str]) -> list[str]:
        """Return the screenshots that the criteria are judged by."""
        most = self._config.max_screenshots
        if len(distinct) <= most:
            return distinct
        relevant: set[int] = set()
        async with asyncio.TaskGroup() as group:
            parts = [
                (start, group.create_task(self._relevant(evidence, distinct[start : start + most])))
                for start in range(0, len(distinct), most)
            ]
        for start, part in parts:
            relevant |= {start + index for index in part.result()}
        return newest(distinct, relevant, most)

    async def _relevant(self, evidence: Evidence, part: list[str]) -> tuple[int, ...]:
        return await self.client.ask(relevance_question(evidence, part), read_relevant(len(part)))

    async def _ask(self, question: Question) -> YesOrNo:
        return await self.client.ask(question, read_yes_or_no)


def _first(group: BaseExceptionGroup[JudgeError]) -> JudgeError:
    """Return one of the errors: the others say the same."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, JudgeError)
    return error
