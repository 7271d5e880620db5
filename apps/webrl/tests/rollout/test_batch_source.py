"""Rounds of the synchronous pool: which groups are kept, and when to stop trying."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import pytest
from awrl_rollout import (
    EpisodeRecord,
    EpisodeRequest,
    Fault,
    FaultBreaker,
    FaultKind,
    Outcome,
    SlotTime,
    StarvedError,
)
from webrl.errors import RunFailedError
from webrl.judge import JudgeUsage, Verdict
from webrl.rollout.batch_source import GroupFilter, SynchronousRollouts
from webrl.rollout.task_stream import TaskStream
from webrl.rollout.trajectory import Step, Trajectory
from webrl.tasks import load_task

End = Callable[[EpisodeRequest], bool | None]
"""Whether an episode succeeds; None for a fault."""


class Pool:
    """Ends every episode as a test says."""

    def __init__(self, end: End) -> None:
        self.num_rounds = 0
        self._end = end

    async def run_round(self, requests: Sequence[EpisodeRequest]) -> list[EpisodeRecord]:
        self.num_rounds += 1
        return [self._record(request) for request in requests]

    async def round_statistics(self) -> SlotTime:
        return SlotTime(busy_s=0, alive_s=0)

    def _record(self, request: EpisodeRequest) -> EpisodeRecord:
        is_success = self._end(request)
        fault = Fault(kind=FaultKind.JUDGE_ERROR, boundary="judge", error_type="", message="down")
        return EpisodeRecord(
            episode_id=request.episode_id,
            group_id=request.group_id,
            member=request.member,
            outcome={True: Outcome.SUCCESS, False: Outcome.FAILURE, None: Outcome.FAULT}[
                is_success
            ],
            reward=None if is_success is None else float(is_success),
            fault=fault if is_success is None else None,
        )


def source(pool: Pool, *, max_share: float = 0.5) -> SynchronousRollouts:
    task = load_task("miniwob/click-test")
    stream = TaskStream([task], num_seeds=1000, group_size=4, seed=0)
    return SynchronousRollouts(
        [pool],
        stream,
        GroupFilter(stream),
        group_size=4,
        breaker=FaultBreaker(max_share=max_share, window=16),
    )


def test_only_groups_of_unequal_rewards_are_kept_and_faults_count_as_neither() -> None:
    def end(request: EpisodeRequest) -> bool | None:
        return (
            {0: True, 1: False, 2: None, 3: False}[request.member]
            if request.group_id == "0"
            else True
        )

    batch = asyncio.run(source(Pool(end)).prepare_batch(8, timeout_s=9))
    [group] = list(batch)
    assert [record.member for record in group.records] == [0, 1, 3]
    assert group.num_lost == 1


def test_a_round_without_such_a_group_is_repeated() -> None:
    pool = Pool(lambda request: request.group_id >= "4" and request.member == 0)
    batch = asyncio.run(source(pool).prepare_batch(8, timeout_s=9))
    assert [group.group_id for group in batch] == ["4", "5"]
    assert pool.num_rounds == 3


def test_rounds_of_faults_alone_stop_the_run() -> None:
    pool = Pool(lambda request: None)
    with pytest.raises(StarvedError, match=r"8 must get through, got \d+ in a row .*judge_error"):
        asyncio.run(source(pool).prepare_batch(8, timeout_s=9))
    assert pool.num_rounds == 5


def group(*rewards: float) -> list[EpisodeRecord]:
    return [
        EpisodeRecord(
            episode_id=f"0/{member}",
            group_id="0",
            member=member,
            outcome=Outcome.SUCCESS if reward > 0 else Outcome.FAILURE,
            reward=reward,
            payload=Trajectory(
                task="never/solved",
                seed=0,
                goal="",
                outcome="success" if reward > 0 else "failure",
                ending="task",
                reward=reward,
                raw_reward=reward,
                steps=[],
                reset_s=0,
            ),
        )
        for member, reward in enumerate(rewards)
    ]


class Stream:
    """Hands out nothing."""

    def next_group(self) -> list[EpisodeRequest]:
        return []

    def finish(self, group_id: str) -> None: ...


def test_groups_are_counted_by_what_they_are_worth() -> None:
    filtered = GroupFilter(Stream())
    assert filtered.describe() == "no group has ended yet"
    for rewards in ((0, 0), (1, 1), (0, 1), (0, 0)):
        filtered.accept(group(*rewards))
    assert filtered.describe() == "of the last 4 groups 2 all failed, 1 all succeeded, 1 useful"
    figures = filtered.metrics(2.0)
    assert figures["rollout/all_failed_groups"] == 2
    assert figures["rollout/all_succeeded_groups"] == 1
    assert figures["rollout/zero_variance_share"] == 0.75
    assert figures["rollout/success_share"] == 3 / 8
    assert figures["rollout/episodes_per_s"] == 4
    assert figures["rollout/episodes_total"] == 8
    assert filtered.metrics(2.0)["rollout/all_failed_groups"] == 0


def step(*, is_valid: bool = True, is_in_form: bool = True, is_truncated: bool = False) -> Step:
    return Step(
        prompt_ids=[1],
        output_ids=[2],
        behavior_logprobs=[-0.5],
        versions=[0],
        images=[],
        reply="",
        action="wait()",
        is_valid=is_valid,
        events=[],
        generate_s=0.0,
        environment_s=0.0,
        is_in_form=is_in_form,
        is_truncated=is_truncated,
    )


def test_replies_are_counted_by_what_is_wrong_with_them() -> None:
    steps = [
        step(),
        step(is_in_form=False),
        step(is_valid=False, is_in_form=False),
        step(is_valid=False, is_in_form=False, is_truncated=True),
    ]
    records = group(0, 1)
    for record in records:
        assert isinstance(record.payload, Trajectory)
        record.payload.steps.extend(steps)
    filtered = GroupFilter(Stream())
    filtered.accept(records)
    figures = filtered.metrics(1.0)
    assert figures["rollout/invalid_share"] == 0.5
    assert figures["rollout/ill_formed_share"] == 0.75
    assert figures["rollout/truncated_share"] == 0.25


def test_what_verdicts_took_is_added_up_between_two_lines_of_metrics() -> None:
    usage = JudgeUsage(num_requests=3, tokens_in=100, tokens_out=10, cost=0.5, wait_s=4.0)
    records = [
        msgspec.structs.replace(
            record,
            payload=msgspec.structs.replace(
                record.payload, verdict=Verdict(is_blocked=False, usage=usage)
            ),
        )
        for record in group(0, 1)
        if isinstance(record.payload, Trajectory)
    ]
    filtered = GroupFilter(Stream())
    filtered.accept(records)
    figures = filtered.metrics(1.0)
    assert (figures["judge/verdicts"], figures["judge/requests"]) == (2, 6)
    assert (figures["judge/tokens_in"], figures["judge/tokens_out"]) == (200, 20)
    assert (figures["judge/cost"], figures["judge/wait_s"]) == (1.0, 4.0)
    assert not [name for name in filtered.metrics(1.0) if name.startswith("judge/")]


def test_tasks_that_nobody_solves_are_named_after_so_many_groups_in_a_row() -> None:
    calls: list[str] = []
    filtered = GroupFilter(Stream(), most_useless=3, on_hopeless=lambda: calls.append("stop"))
    for rewards in ((0, 0), (0, 0), (0, 1), (0, 0), (1, 1)):
        filtered.accept(group(*rewards))
    filtered.check()
    assert not calls
    filtered.accept(group(0, 0))
    filtered.accept(group(0, 0))
    assert calls == ["stop"]
    with pytest.raises(
        RunFailedError,
        match=r"4 groups in a row .* 5 all failed, 1 all succeeded, 1 useful. They are of "
        r"'never/solved'\. Where all fail, give easier tasks",
    ):
        filtered.check()
