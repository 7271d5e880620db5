"""A state machine drives the controller through worker deaths, lost and repeated records,
hangs, cancels, expiries and resumes.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence

import msgspec
from awrl_rollout import (
    BatchTimeoutError,
    ControllerConfig,
    EpisodeRecord,
    RolloutBatch,
    RolloutController,
    VirtualClock,
)
from awrl_rollout.testing import make_group
from awrl_staleness import StalenessConfig, StalenessManager, StalenessStatistics
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from rollout_doubles import LoopHost, ScriptedWorker

PICK = st.integers(0, 1000)
EPISODE_DEADLINE_S = 60.0
CALL_DEADLINE_S = 5.0
NUM_SLOTS = 3


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What a run goes on from."""

    version: int
    trained: list[str]
    discarded: list[str]
    groups_done: list[str]


class ControllerMachine(RuleBasedStateMachine):
    @initialize(
        eta=st.integers(0, 2),
        batch=st.integers(2, 5),
        group_size=st.integers(1, 2),
        concurrent=st.integers(1, 8),
        policy=st.sampled_from(["deliver", "drop"]),
        overrun=st.sampled_from(["drop", "wait"]),
    )
    def begin(
        self,
        eta: int,
        batch: int,
        group_size: int,
        concurrent: int,
        policy: str,
        overrun: str,
    ) -> None:
        self.clock = VirtualClock()
        self.host = LoopHost(self.clock)
        self.batch_size = batch
        self.group_size = group_size
        self.eta = eta
        self.limits = StalenessConfig(
            max_concurrent=concurrent, consumer_batch_size=batch, max_off_policyness=eta
        )
        self.config = ControllerConfig(
            episode_deadline_s=EPISODE_DEADLINE_S,
            worker_call_deadline_s=CALL_DEADLINE_S,
            max_fault_share=None,
            overrun_deadline_s=30.0,
            on_overrun="wait" if overrun == "wait" else "drop",
            max_refills=1,
            when_incomplete="drop" if policy == "drop" else "deliver",
        )
        self.group_numbers = itertools.count()
        self.worker_numbers = itertools.count()
        self.outstanding: list[RolloutBatch] = []
        self.trained: list[str] = []
        self.groups_done: list[str] = []
        self.discarded: list[str] = []
        self.all_workers: list[ScriptedWorker] = []
        self.accepted: dict[str, Sequence[EpisodeRecord]] = {}
        self.manager = StalenessManager(self.limits)
        self.save()
        self.start()

    def start(self) -> None:
        self.workers = [self.new_worker(), self.new_worker()]
        self.controller = RolloutController(
            self.workers,
            self.manager,
            source=lambda: make_group(f"g{next(self.group_numbers)}", self.group_size),
            config=self.config,
            accept_group=self.accept,
            on_discarded=self.hear_discarded,
            on_group_dropped=lambda group_id, reason: self.groups_done.append(group_id),
            on_worker_lost=lambda name: None,
            clock=self.clock,
        )
        self.restore()
        self.host.run(self.controller.__aenter__())
        self.host.settle()

    def new_worker(self) -> ScriptedWorker:
        worker = ScriptedWorker(f"w{next(self.worker_numbers)}", num_slots=NUM_SLOTS)
        self.all_workers.append(worker)
        return worker

    def accept(self, records: Sequence[EpisodeRecord]) -> str | None:
        if all(record.reward == 0.0 for record in records):
            return "zero variance"
        self.accepted[records[0].group_id] = tuple(records)
        return None

    def hear_discarded(self, records: Sequence[EpisodeRecord], reason: str) -> None:
        if not reason.startswith("late"):
            self.discarded += [record.episode_id for record in records]

    def pick(self, index: int) -> tuple[ScriptedWorker, str] | None:
        running = [(worker, key) for worker in self.workers for key in worker.requests]
        return running[index % len(running)] if running else None

    # -- what workers do

    @rule(index=PICK, reward=st.sampled_from([0.0, 1.0]), lag=st.integers(0, 1))
    def succeed(self, index: int, reward: float, lag: int) -> None:
        if found := self.pick(index):
            worker, key = found
            version = max(0, worker.requests[key].weight_version - lag)
            newest = max(version, self.manager.version)
            worker.succeed(key, reward=reward, oldest_version=version, newest_version=newest)
            self.host.settle()

    @rule(rewards=st.lists(st.sampled_from([1.0, 1.0, 0.0]), min_size=1, max_size=3))
    def succeed_all(self, rewards: list[float]) -> None:
        """End whatever runs, and whatever starts in its place, for a few rounds."""
        for reward in rewards:
            for worker in self.workers:
                for key in list(worker.requests):
                    newest = self.manager.version
                    worker.succeed(key, reward=reward, newest_version=newest)
            self.host.settle()

    @rule(index=PICK, verdict=st.sampled_from(["fail", "filter_out", "forget"]))
    def end_badly(self, index: int, verdict: str) -> None:
        if found := self.pick(index):
            getattr(found[0], verdict)(found[1])
            self.host.settle()

    @rule(index=PICK)
    def repeat_a_record(self, index: int) -> None:
        told = [(worker, record) for worker in self.workers for record in worker.delivered]
        if told:
            worker, record = told[index % len(told)]
            worker.deliver(record)
            self.host.settle()

    @rule(index=PICK, is_silent=st.booleans())
    def lose_callbacks(self, index: int, is_silent: bool) -> None:
        self.workers[index % len(self.workers)].is_silent = is_silent

    @rule(index=PICK, how=st.sampled_from(["die", "hang"]))
    def kill(self, index: int, how: str) -> None:
        worker = self.workers.pop(index % len(self.workers))
        if how == "die":
            worker.die()
        else:
            worker.hang.update(["submit", "take_finished", "cancel", "statistics"])
        fresh = self.new_worker()
        self.workers.append(fresh)
        self.host.call(lambda: self.controller.add_worker(fresh))

    @rule(delay_s=st.sampled_from([0.5, 2.0, 2 * CALL_DEADLINE_S, EPISODE_DEADLINE_S + 2.0]))
    def wait(self, delay_s: float) -> None:
        self.host.run(self.clock.sleep(delay_s))
        self.host.settle()

    # -- what the trainer does

    @precondition(lambda self: len(self.outstanding) <= self.eta)
    @rule()
    def take_batch(self) -> None:
        try:
            batch = self.host.run(self.controller.prepare_batch(self.batch_size, timeout_s=0.01))
        except BatchTimeoutError:
            return
        assert batch.version == self.manager.version
        for group in batch:
            assert group.trainable
            assert group.group_id not in self.groups_done
            self.groups_done.append(group.group_id)
            for record in group.trainable:
                assert record.oldest_version is not None
                assert self.manager.version - record.oldest_version <= self.eta
                assert record.episode_id not in self.trained
                assert record.episode_id not in self.discarded
                self.trained.append(record.episode_id)
        self.outstanding.append(batch)

    @rule(is_advance=st.booleans())
    def end_batch(self, is_advance: bool) -> None:
        if is_advance:
            self.controller.advance(self.manager.version + 1)
            self.outstanding.clear()
        elif self.outstanding:
            self.controller.release_budget(batches=[self.outstanding.pop(0).batch])
        self.host.settle()

    @rule(is_open=st.booleans())
    def gate(self, is_open: bool) -> None:
        if is_open:
            self.controller.resume_admission()
        else:
            self.controller.pause_admission()
        self.host.settle()

    @rule()
    def save(self) -> None:
        """What a checkpoint keeps: the version, and which groups are over."""
        self.saved = Saved(
            version=self.manager.version,
            trained=list(self.trained),
            discarded=list(self.discarded),
            groups_done=list(self.groups_done),
        )

    @rule()
    def restart(self) -> None:
        """Stop the whole run and go on from the save: what was accepted is kept, all else is lost."""
        self.close()
        self.assert_nothing_is_open()
        self.outstanding.clear()
        saved = self.saved
        self.trained, self.discarded = list(saved.trained), list(saved.discarded)
        self.groups_done = list(saved.groups_done)
        self.manager = StalenessManager(self.limits, version=saved.version)
        self.start()

    def restore(self) -> None:
        num_restored, room = 0, self.limits.budget
        for group_id, records in self.accepted.items():
            if group_id in self.groups_done:
                continue
            versions = [(item.oldest_version or 0, item.newest_version or 0) for item in records]
            is_fresh = any(self.manager.version - old <= self.eta for old, _ in versions)
            is_known = all(new <= self.manager.version for _, new in versions)
            is_taken = self.controller.restore(make_group(group_id, self.group_size), records)
            assert is_taken == (is_fresh and is_known and len(records) <= room)
            room -= len(records) * is_taken
            num_restored += len(records) * is_taken
            if not is_taken:
                self.groups_done.append(group_id)
        seen = self.controller.statistics()
        assert (seen.num_restored, seen.staleness.num_queued) == (num_restored, num_restored)
        assert seen.staleness.capacity.bounds["staleness"] == room

    # -- what always holds

    @invariant()
    def bounds_hold(self) -> None:
        if not hasattr(self, "manager"):
            return
        assert all(worker.most_running <= NUM_SLOTS for worker in self.all_workers)
        seen = self.manager.statistics()
        assert seen.num_running <= self.limits.max_concurrent
        in_use = seen.num_running + seen.num_reserved + seen.finished - seen.released
        assert in_use <= self.limits.budget
        parts = (
            seen.num_enqueued,
            seen.num_running,
            seen.num_accepted,
            seen.num_rejected,
            seen.num_faulted,
            seen.num_expired,
        )
        assert min(parts) >= 0
        assert sum(parts) == seen.num_submitted
        assert len(set(self.groups_done)) == len(self.groups_done)
        assert len(set(self.discarded)) == len(self.discarded)

    def close(self) -> None:
        self.host.run(self.controller.aclose(timeout_s=CALL_DEADLINE_S))
        self.host.run(self.controller.__aexit__(None, None, None))

    def teardown(self) -> None:
        """The run can always go on, and after its end only groups in the queue hold units."""
        if not hasattr(self, "controller"):
            return
        self.controller.release_budget()
        self.controller.resume_admission()
        assert self.fills_a_batch()
        self.controller.release_budget()
        self.close()
        seen = self.assert_nothing_is_open()
        assert seen.capacity.bounds["staleness"] == self.limits.budget - seen.num_queued
        self.host.close()

    def assert_nothing_is_open(self) -> StalenessStatistics:
        seen = self.manager.statistics()
        assert (seen.num_running, seen.num_reserved, seen.num_enqueued) == (0, 0, 0)
        return seen

    def fills_a_batch(self) -> bool:
        """Whether a batch closes once every episode that runs ends well."""
        for _ in range(int(EPISODE_DEADLINE_S)):
            for worker in self.workers:
                for key in list(worker.requests):
                    worker.succeed(key)
            self.host.run(self.clock.sleep(2.0))
            with contextlib.suppress(BatchTimeoutError):
                self.host.run(self.controller.prepare_batch(self.batch_size, timeout_s=0.01))
                return True
        return False


TestControllerMachine = ControllerMachine.TestCase
TestControllerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
