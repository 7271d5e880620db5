"""A state machine drives the manager against a model that is a dict of states."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from awrl_staleness import StalenessConfig, StalenessError, StalenessManager
from awrl_staleness.ledger import TRANSITIONS, EpisodeState
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

TERMINAL = frozenset(EpisodeState) - frozenset().union(*TRANSITIONS.values())
EVENTS = {
    "finish": EpisodeState.FINISHED,
    "reject": EpisodeState.REJECTED,
    "fault": EpisodeState.FAULTED,
    "expire": EpisodeState.EXPIRED,
}
HELD = (EpisodeState.RUNNING, EpisodeState.FINISHED, EpisodeState.CONSUMED)
PICK = st.integers(0, 1000)


class LedgerMachine(RuleBasedStateMachine):
    """Every event on every kind of episode, legal or not, a resume now and then."""

    @initialize(concurrent=st.integers(1, 6), batch=st.integers(1, 4), eta=st.integers(0, 2))
    def begin(self, concurrent: int, batch: int, eta: int) -> None:
        self.config = StalenessConfig(
            max_concurrent=concurrent, consumer_batch_size=batch, max_off_policyness=eta
        )
        self.manager = StalenessManager(self.config)
        self.states: dict[str, EpisodeState] = {}
        self.group_of: dict[str, str] = {}
        self.oldest: dict[str, int] = {}
        self.open_groups: dict[str, int] = {}
        self.batches: dict[int, list[str]] = {}
        self.released: set[str] = set()
        self.num_names = 0

    # -- helpers

    def name(self, prefix: str) -> str:
        self.num_names += 1
        return f"{prefix}{self.num_names}"

    def pick(self, index: int, *wanted: EpisodeState) -> str | None:
        ids = [key for key, state in self.states.items() if state in wanted]
        return ids[index % len(ids)] if ids else None

    def in_use(self, group: str) -> int:
        return sum(
            self.group_of.get(key) == group and state in HELD and key not in self.released
            for key, state in self.states.items()
        )

    def count(self, state: EpisodeState) -> int:
        return sum(
            value is state and key not in self.released for key, value in self.states.items()
        )

    def budget_in_use(self) -> int:
        idle = sum(units - self.in_use(group) for group, units in self.open_groups.items())
        return sum(map(self.count, HELD)) + idle

    def room(self) -> int:
        return min(
            self.config.max_concurrent - self.count(EpisodeState.RUNNING),
            self.config.budget - self.budget_in_use(),
        )

    def tell(self, event: str, key: str) -> None:
        if event == "finish":
            self.manager.finish(key)
        elif event == "expire":
            self.manager.expire(key)
        elif event == "reject":
            self.manager.reject(key, "test")
        else:
            self.manager.fault(key, "test")

    # -- rules

    @rule()
    def admit(self) -> None:
        key, room = self.name("e"), self.room()
        assert self.manager.try_admit(key) == (room > 0)
        if room > 0:
            self.states[key] = EpisodeState.RUNNING
            self.oldest[key] = self.manager.version

    @rule(units=st.integers(1, 3))
    def reserve(self, units: int) -> None:
        key = self.name("g")
        if units > self.config.budget:
            return
        fits = (
            self.count(EpisodeState.RUNNING) < self.config.max_concurrent
            and self.config.budget - self.budget_in_use() >= units
        )
        assert self.manager.try_reserve(key, units) == fits
        if fits:
            self.open_groups[key] = units

    @rule(index=PICK)
    def enqueue(self, index: int) -> None:
        key, groups = self.name("e"), [None, *self.open_groups]
        group = groups[index % len(groups)]
        self.manager.enqueue(key, group_id=group)
        self.states[key] = EpisodeState.ENQUEUED
        if group is not None:
            self.group_of[key] = group

    @precondition(lambda self: self.open_groups)
    @rule(index=PICK)
    def start_member(self, index: int) -> None:
        group = list(self.open_groups)[index % len(self.open_groups)]
        key = self.name("m")
        self.manager.enqueue(key, group_id=group)
        self.states[key] = EpisodeState.ENQUEUED
        self.group_of[key] = group
        self.start_one(key)

    @rule(index=PICK)
    def start(self, index: int) -> None:
        key = self.pick(index, EpisodeState.ENQUEUED)
        if key is not None:
            self.start_one(key)

    def start_one(self, key: str) -> None:
        group = self.group_of.get(key)
        if group is None:
            is_allowed = self.room() > 0
        elif self.count(EpisodeState.RUNNING) >= self.config.max_concurrent:
            is_allowed = False
        elif group not in self.open_groups:
            with pytest.raises(StalenessError, match="must be open"):
                self.manager.try_start(key)
            return
        elif self.in_use(group) >= self.open_groups[group]:
            with pytest.raises(StalenessError, match="must keep a unit"):
                self.manager.try_start(key)
            return
        else:
            is_allowed = True
        assert self.manager.try_start(key) == is_allowed
        if is_allowed:
            self.states[key] = EpisodeState.RUNNING
            self.oldest[key] = self.manager.version

    @rule(index=PICK)
    def finish(self, index: int) -> None:
        key = self.pick(index, EpisodeState.RUNNING)
        if key is not None:
            self.manager.finish(key, oldest_version=self.oldest[key])
            self.states[key] = EpisodeState.FINISHED

    @rule(index=PICK, event=st.sampled_from(["reject", "fault", "expire"]))
    def end(self, index: int, event: str) -> None:
        key = self.pick(index, *TRANSITIONS[EVENTS[event]])
        if key is None:
            return
        self.tell(event, key)
        self.states[key] = EVENTS[event]

    @rule(index=PICK, event=st.sampled_from(["finish", "reject", "fault", "expire"]))
    def illegal(self, index: int, event: str) -> None:
        key = self.pick(index, *(set(EpisodeState) - TRANSITIONS[EVENTS[event]]))
        if key is None:
            return
        before = self.manager.statistics()
        with pytest.raises(StalenessError):
            self.tell(event, key)
        assert self.manager.statistics() == before

    @precondition(lambda self: self.open_groups)
    @rule(index=PICK)
    def close(self, index: int) -> None:
        key = list(self.open_groups)[index % len(self.open_groups)]
        self.manager.close_group(key)
        del self.open_groups[key]

    @rule(limit=st.integers(1, 6))
    def consume(self, limit: int) -> None:
        ready = [
            key
            for key, state in self.states.items()
            if state is EpisodeState.FINISHED and self.group_of.get(key) not in self.open_groups
        ]
        for key in [key for key in ready if not self.manager.is_fresh(self.oldest[key])]:
            self.manager.expire(key)
            self.states[key] = EpisodeState.EXPIRED
            ready.remove(key)
        room = self.manager.capacity()
        batch = self.manager.consume(ready[:limit])
        assert self.manager.capacity() == room
        self.batches[batch] = ready[:limit]
        for key in ready[:limit]:
            self.states[key] = EpisodeState.CONSUMED

    @rule(is_advance=st.booleans(), index=PICK)
    def end_batch(self, is_advance: bool, index: int) -> None:
        if is_advance:
            self.manager.advance(self.manager.version + 1)
            chosen = list(self.batches)
        elif self.batches:
            chosen = [list(self.batches)[index % len(self.batches)]]
            self.manager.release_budget(chosen)
        else:
            return
        for batch in chosen:
            self.released.update(self.batches.pop(batch))

    @rule(is_advance=st.booleans(), index=PICK)
    def end_a_batch_twice(self, is_advance: bool, index: int) -> None:
        if not self.batches:
            return
        batch, before = list(self.batches)[index % len(self.batches)], self.manager.statistics()
        version = self.manager.version + 1
        end = partial(self.manager.advance, version) if is_advance else self.manager.release_budget
        with pytest.raises(StalenessError, match="batches must be distinct"):
            end(batches=[batch, batch])
        assert self.manager.statistics() == before

    @rule()
    def resume(self) -> None:
        """Of a run before, only what finished holds budget, and only what is restored does."""
        kept = [key for key, state in self.states.items() if state is EpisodeState.FINISHED]
        self.manager = StalenessManager(self.config, version=self.manager.version)
        self.states, self.open_groups, self.batches = {}, {}, {}
        self.group_of, self.released = {}, set()
        assert self.manager.statistics().capacity.bounds["staleness"] == self.config.budget
        assert self.manager.try_restore({key: self.oldest[key] for key in kept})
        self.states = dict.fromkeys(kept, EpisodeState.FINISHED)

    @rule(count=st.integers(1, 4), is_of_lost_weights=st.booleans())
    def restore(self, count: int, is_of_lost_weights: bool) -> None:
        oldest = {self.name("r"): max(0, self.manager.version - number) for number in range(count)}
        before = self.manager.statistics()
        if is_of_lost_weights:
            wrong = oldest | {self.name("r"): self.manager.version + 1}
            with pytest.raises(StalenessError, match="at most that of the servers"):
                self.manager.try_restore(wrong)
            assert self.manager.statistics() == before
            return
        has_room = self.config.budget - self.budget_in_use() >= count
        assert self.manager.try_restore(oldest) == has_room
        if not has_room:
            assert self.manager.statistics() == before
            return
        self.states |= dict.fromkeys(oldest, EpisodeState.FINISHED)
        self.oldest |= oldest
        with pytest.raises(StalenessError, match="must be new"):
            self.manager.try_restore(oldest)

    # -- what always holds

    @invariant()
    def counts_agree_and_bounds_hold(self) -> None:
        seen = self.manager.statistics()
        assert seen.num_enqueued == self.count(EpisodeState.ENQUEUED)
        assert seen.num_running == self.count(EpisodeState.RUNNING)
        assert seen.num_queued == self.count(EpisodeState.FINISHED)
        assert seen.num_training == self.count(EpisodeState.CONSUMED)
        assert seen.num_running <= self.config.max_concurrent
        assert self.budget_in_use() <= self.config.budget
        assert seen.capacity.value == max(0, self.room()) <= self.config.budget
        parts = Counter(
            enqueued=seen.num_enqueued,
            running=seen.num_running,
            accepted=seen.num_accepted,
            rejected=seen.num_rejected,
            faulted=seen.num_faulted,
            expired=seen.num_expired,
        )
        assert min(parts.values()) >= 0
        assert parts.total() == seen.num_submitted
        assert max(seen.off_policyness, default=0) <= self.config.max_off_policyness

    @invariant()
    def nothing_starves(self) -> None:
        """With nothing running or reserved, no capacity means that the batch can fill."""
        seen = self.manager.statistics()
        if seen.num_running == 0 and not self.open_groups and seen.capacity.value == 0:
            assert seen.num_queued + seen.num_training >= self.config.consumer_batch_size

    def teardown(self) -> None:
        """Capacity always comes back."""
        if not hasattr(self, "manager"):
            return
        for group in self.open_groups:
            self.manager.close_group(group)
        for key, state in self.states.items():
            if state not in TERMINAL:
                self.manager.reject(key, "the end")
        self.manager.release_budget()
        seen = self.manager.statistics()
        assert seen.capacity.bounds == {
            "concurrency": self.config.max_concurrent,
            "staleness": self.config.budget,
        }
        assert not any(map(self.manager.is_live, self.states))


TestLedgerMachine = pytest.mark.requirement("bounded-staleness")(LedgerMachine.TestCase)
TestLedgerMachine.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)


def test_terminal_states_have_no_way_out() -> None:
    names = {state.name for state in TERMINAL}
    assert names == {"CONSUMED", "REJECTED", "FAULTED", "EXPIRED"}
    assert set(TRANSITIONS) == set(EpisodeState) - {EpisodeState.ENQUEUED}
