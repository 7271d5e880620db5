"""A state machine drives the executor: every request ends exactly once, slots are never exceeded."""

from __future__ import annotations

import asyncio

from awrl_rollout import (
    EpisodeContext,
    EpisodeRequest,
    EpisodeResult,
    Outcome,
    RetryPolicy,
    VirtualClock,
    WorkflowExecutor,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from rollout_doubles import LoopHost

DEADLINE_S = 10.0
PICK = st.integers(0, 1000)


class Gates:
    """Lets the test end each running episode as it likes."""

    def __init__(self) -> None:
        self.waiting: dict[str, asyncio.Future[str]] = {}
        self.most = 0

    async def workflow(
        self, request: EpisodeRequest, context: EpisodeContext
    ) -> EpisodeResult | None:
        gate = asyncio.get_running_loop().create_future()
        self.waiting[request.episode_id] = gate
        self.most = max(self.most, len(self.waiting))
        try:
            verdict = await gate
        finally:
            del self.waiting[request.episode_id]
        if verdict == "raise":
            raise ValueError("x")
        return None if verdict == "none" else EpisodeResult(is_success=verdict == "success")


class ExecutorMachine(RuleBasedStateMachine):
    @initialize(num_slots=st.integers(1, 3), max_retries=st.integers(0, 1))
    def begin(self, num_slots: int, max_retries: int) -> None:
        self.clock = VirtualClock()
        self.host = LoopHost(self.clock)
        self.gates = Gates()
        self.num_slots = num_slots
        self.told: list[str] = []
        self.executor = WorkflowExecutor(
            self.gates.workflow,
            num_slots=num_slots,
            deadline_s=DEADLINE_S,
            retry=RetryPolicy(max_retries=max_retries, base_delay_s=1.0, jitter=0.0),
            on_finished=self.hear,
            clock=self.clock,
        )
        self.host.run(self.executor.__aenter__())
        self.submitted: list[str] = []
        self.taken: list[str] = []
        self.unacknowledged: list[str] = []

    async def hear(self, records: object) -> None:
        assert isinstance(records, list)
        self.told += [record.episode_id for record in records]
        if len(self.told) % 3 == 0:
            raise OSError("the hook fails now and then")

    def finish(self, index: int, verdict: str) -> None:
        names = list(self.gates.waiting)
        if names:
            self.gates.waiting[names[index % len(names)]].set_result(verdict)
            self.host.settle()

    @rule(count=st.integers(1, 4))
    def submit(self, count: int) -> None:
        names = [f"e{len(self.submitted) + index}" for index in range(count)]
        self.executor.submit(EpisodeRequest(episode_id=name, group_id=name) for name in names)
        self.submitted += names
        self.host.settle()

    @rule(index=PICK, verdict=st.sampled_from(["success", "failure", "none", "raise"]))
    def end(self, index: int, verdict: str) -> None:
        self.finish(index, verdict)

    @precondition(lambda self: self.submitted)
    @rule(index=PICK)
    def cancel(self, index: int) -> None:
        names = [self.submitted[index % len(self.submitted)], "nobody"]
        self.host.call(lambda: self.executor.cancel(names))

    @rule(delay_s=st.sampled_from([0.5, 1.0, DEADLINE_S]))
    def wait(self, delay_s: float) -> None:
        self.host.run(self.clock.sleep(delay_s))
        self.host.settle()

    @rule(is_open=st.booleans())
    def gate(self, is_open: bool) -> None:
        if is_open:
            self.executor.resume_admission()
        else:
            self.executor.pause_admission()
        self.host.settle()

    @rule()
    def take(self) -> None:
        records = self.executor.take_finished(self.unacknowledged)
        names = [record.episode_id for record in records]
        self.unacknowledged = names
        for name in names:
            assert name not in self.taken
        self.taken += names

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "executor"):
            return
        seen = self.executor.statistics()
        assert self.gates.most <= self.num_slots
        assert seen.num_running <= self.num_slots
        assert seen.num_waiting + seen.num_running + seen.num_ended == len(self.submitted)
        assert 0.0 <= seen.idle_share <= 1.0
        if seen.is_admission_open and seen.num_waiting:
            assert seen.num_running == self.num_slots

    def teardown(self) -> None:
        """Closing records every request that was left, once."""
        if not hasattr(self, "executor"):
            return
        self.host.run(self.executor.aclose(timeout_s=1.0))
        records = self.executor.take_finished(self.unacknowledged)
        assert sorted(self.taken + [record.episode_id for record in records]) == sorted(
            self.submitted
        )
        assert all(
            (record.outcome is Outcome.FAULT) == (record.fault is not None) for record in records
        )
        self.host.run(self.executor.__aexit__(None, None, None))
        assert self.executor.statistics().num_running == 0
        assert len(set(self.told)) == len(self.told)
        self.host.close()


TestExecutorMachine = ExecutorMachine.TestCase
TestExecutorMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
