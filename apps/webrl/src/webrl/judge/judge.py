"""The verdict on one episode.

Invariants:

* whether the site shut the agent out is asked first, of episodes without an answer too: such an
  episode is a fault, not a failure;
* an episode without an answer is no success, and no further question is asked;
* every criterion is asked, also after one that does not hold: the support of the answer once,
  each fact of the rubric, the reference answer where there is one; success needs all of them;
* one question without an answer and there is no verdict (`JudgeError`), but a server that is down is
  waited for, up to `max_outage_s`, by one request at a time;
* of the screenshots, one that shows what the one before it shows is left out; of those left, the
  last is always among the chosen ones, and their order is that of the episode.

The questions on one episode go out together; `max_concurrent` bounds them over all episodes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Collection, Sequence

import msgspec
from awrl_rollout import RetryPolicy, UnwrappedTaskGroup

from webrl.config import JudgeSection
from webrl.judge.chat import ChatClient, JudgeDownError, Question, Stopwatch
from webrl.judge.questions import (
    YesOrNo,
    blocked_question,
    fact_question,
    read_relevant,
    read_yes_or_no,
    reference_question,
    relevance_question,
    supported_question,
)
from webrl.judge.verdict import Criterion, Evidence, JudgeUsage, Verdict

logger = logging.getLogger(__name__)

PROBE = RetryPolicy(base_delay_s=1.0, max_delay_s=15.0)
"""Between two looks at a server that is down: an episode is judged soon after it is back."""


class Judge:
    """Judges episodes. Made inside of a running event loop, and ended by `aclose`.

    Args:
        config: Where the model is, and the limits.
        client: Asks it; one made from the configuration when None.
        probe: Waits between two looks at a server that is down.

    Raises:
        JudgeError: The environment lacks the key.
    """

    def __init__(
        self,
        config: JudgeSection,
        *,
        client: ChatClient | None = None,
        probe: RetryPolicy = PROBE,
    ) -> None:
        self._config = config
        self._client = client or ChatClient(config)
        self._probe = probe
        self._rng = random.Random()
        self._gate = asyncio.Lock()
        self._down_since_s: float | None = None

    @property
    def models(self) -> dict[str, str]:
        """Which model is asked, by kind of question."""
        return self._config.models()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def judge(self, evidence: Evidence) -> Verdict:
        """Return the verdict on an episode.

        A server that is down is waited for, by one episode that asks again and again while the others
        wait for it; what was answered before is not asked again.

        Raises:
            JudgeError: There is none: the server was down for too long, was late, or answered out of
                form.
        """
        clock, usage = asyncio.get_running_loop().time, JudgeUsage()
        started_s = clock()
        async with self._gate:
            pass  # whoever finds the server down holds the gate
        try:
            verdict = await self._once(evidence, usage)
        except JudgeDownError:
            async with self._gate:
                verdict = await self._when_up(evidence, usage)
        usage.wait_s = clock() - started_s
        return msgspec.structs.replace(verdict, usage=usage)

    async def _when_up(self, evidence: Evidence, usage: JudgeUsage) -> Verdict:
        """Ask until the server answers, or has been down for too long."""
        clock, number = asyncio.get_running_loop().time, 0
        if self._down_since_s is None:
            self._down_since_s = clock()
            logger.warning("the judge is down: episodes wait for their verdicts")
        while True:
            try:
                return await self._once(evidence, usage)
            except JudgeDownError:
                left_s = self._down_since_s + self._config.max_outage_s - clock()
                if left_s <= 0:
                    raise
                number += 1
                await asyncio.sleep(min(self._probe.delay_s(number, self._rng), left_s))

    async def _once(self, evidence: Evidence, usage: JudgeUsage) -> Verdict:
        verdict = await self._judge(evidence, Stopwatch(self._config.deadline_s, usage))
        if self._down_since_s is not None:
            self._down_since_s = None
            logger.warning("the judge answers again")
        return verdict

    async def _judge(self, evidence: Evidence, stopwatch: Stopwatch) -> Verdict:
        distinct = without_repeats(evidence.screenshots)
        shown = spread(distinct, self._config.max_screenshots)
        if (await self._ask(blocked_question(evidence, shown), stopwatch)).verdict:
            return Verdict(is_blocked=True)
        if evidence.answer is None:
            return Verdict(is_blocked=False)
        chosen = await self._select(evidence, distinct, stopwatch)
        questions = self._questions(evidence, chosen)
        async with UnwrappedTaskGroup() as group:
            asked = {
                name: group.create_task(self._ask(q, stopwatch)) for name, q in questions.items()
            }
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

    async def _select(
        self, evidence: Evidence, distinct: list[str], stopwatch: Stopwatch
    ) -> list[str]:
        """Return the screenshots that the criteria are judged by."""
        most = self._config.max_screenshots
        if len(distinct) <= most:
            return distinct
        relevant: set[int] = set()
        async with UnwrappedTaskGroup() as group:
            parts = [
                (start, group.create_task(self._relevant(evidence, part, stopwatch)))
                for start in range(0, len(distinct), most)
                if (part := distinct[start : start + most])
            ]
        for start, part in parts:
            relevant |= {start + index for index in part.result()}
        return newest(distinct, relevant, most)

    async def _relevant(
        self, evidence: Evidence, part: list[str], stopwatch: Stopwatch
    ) -> tuple[int, ...]:
        question = relevance_question(evidence, part)
        return await self._client.ask(question, read_relevant(len(part)), stopwatch)

    async def _ask(self, question: Question, stopwatch: Stopwatch) -> YesOrNo:
        return await self._client.ask(question, read_yes_or_no, stopwatch)


def without_repeats(screenshots: Sequence[str]) -> list[str]:
    """Return the screenshots that differ from the one before."""
    return [image for image, _ in itertools.groupby(screenshots)]


def spread(screenshots: Sequence[str], count: int) -> list[str]:
    """Return at most `count` screenshots, evenly spread, the last included."""
    if len(screenshots) <= count:
        return list(screenshots)
    if count == 1:
        return [screenshots[-1]]
    last = len(screenshots) - 1
    return [screenshots[round(i * last / (count - 1))] for i in range(count)]


def newest(screenshots: Sequence[str], relevant: Collection[int], count: int) -> list[str]:
    """Return at most `count` screenshots: the last one and the newest relevant ones."""
    last = len(screenshots) - 1
    chosen = sorted({index for index in relevant if index < last} | {last})
    return [screenshots[index] for index in chosen[-count:]]
