"""New episodes go where the fewest are, and stay there."""

from __future__ import annotations

from collections import Counter
from typing import Any

from awrl_rollout import EpisodeAssignment, StickyRouter
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from rollout_doubles import ScriptedClient

NAMES = ("a", "b", "c", "d", "e")
WORKERS = ("w0", "w1", "w2")


class AssignmentMachine(RuleBasedStateMachine):
    """Against a list of who is where."""

    def __init__(self) -> None:
        super().__init__()
        self.servers = ["a", "b", "c"]
        self.assignment = EpisodeAssignment(self.servers)
        self.running: dict[tuple[str, str], str] = {}
        self.next_id = 0

    @property
    def counts(self) -> Counter[str]:
        return Counter({name: 0 for name in self.servers} | dict(Counter(self.running.values())))

    @rule(worker=st.sampled_from(WORKERS), count=st.integers(1, 5))
    def start(self, worker: str, count: int) -> None:
        ids = [str(self.next_id + index) for index in range(count)]
        self.next_id += count
        before = self.counts
        found = self.assignment.assign(worker, ids)
        assert self.assignment.assign(worker, ids) == found, "asked twice, it stays"
        for key in ids:
            assert before[found[key]] == min(before[name] for name in self.servers)
            before[found[key]] += 1
            self.running[worker, key] = found[key]

    @rule(data=st.data())
    def end(self, data: Any) -> None:
        if self.running:
            worker, key = data.draw(st.sampled_from(sorted(self.running)))
            self.assignment.release(worker, [key, "unknown"])
            self.assignment.release(worker, [key])
            del self.running[worker, key]

    @rule(worker=st.sampled_from(WORKERS))
    def lose_worker(self, worker: str) -> None:
        self.assignment.release_worker(worker)
        self.running = {k: name for k, name in self.running.items() if k[0] != worker}

    @rule(names=st.sets(st.sampled_from(NAMES), min_size=1))
    def change_servers(self, names: set[str]) -> None:
        self.servers = sorted(names)
        self.assignment.set_servers(self.servers)
        self.running = {k: name for k, name in self.running.items() if name in names}

    @invariant()
    def fullest_is_what_runs(self) -> None:
        counts = self.counts
        total = sum(counts.values())
        expected = max(counts.values()) * len(self.servers) / total if total else 1.0
        assert self.assignment.max_over_mean == expected


TestAssignment = AssignmentMachine.TestCase
TestAssignment.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)


def test_without_servers_nothing_is_assigned() -> None:
    assignment = EpisodeAssignment()
    assert assignment.assign("w", ["0"]) == {}
    assert assignment.max_over_mean == 1.0


def test_a_router_follows_the_assignment_while_its_server_is_well() -> None:
    clients = {name: ScriptedClient() for name in NAMES}
    router = StickyRouter(clients, connect=clients.__getitem__)
    home = router.route("7/0")
    other = next(name for name in NAMES if name != home)
    router.assign({"7/0": other})
    assert router.route("7/0") == other
    router.set_servers([name for name in NAMES if name != other])
    assert router.route("7/0") == home
    router.set_servers(NAMES)
    assert router.route("7/0") == other
    router.forget(["7/0", "unknown"])
    assert router.route("7/0") == home
