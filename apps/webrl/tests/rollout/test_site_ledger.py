"""Which sites are drawn: closed ones wait, what was seen fades, and nothing starves."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from awrl_rollout import EpisodeRecord, EpisodeRequest, Fault, FaultKind, Outcome
from webrl.rollout.site_ledger import CLOSING, OpenSites, SiteLedger
from webrl.rollout.task_stream import TaskStream
from webrl.tasks import Task

HOUR_S = 3600.0


class Time:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def ended(site: str, reward: float = 1.0) -> EpisodeRecord:
    outcome = Outcome.SUCCESS if reward > 0 else Outcome.FAILURE
    return EpisodeRecord(
        episode_id="0/0", group_id="0", site=site, outcome=outcome, reward=reward, ended_s=5.0
    )


def faulted(site: str, kind: FaultKind) -> EpisodeRecord:
    fault = Fault(kind=kind, boundary="reset", message="no")
    return EpisodeRecord(
        episode_id="0/0", group_id="0", site=site, outcome=Outcome.FAULT, fault=fault
    )


def ledger_of(path: Path | None = None) -> tuple[SiteLedger, Time]:
    clock = Time()
    return SiteLedger(path, expiry_s=12 * HOUR_S, clock=clock), clock


def stream_of(num_tasks: int, num_sites: int) -> TaskStream:
    tasks = [
        Task(
            suite="web",
            name=str(number),
            url=f"https://site{number % num_sites}.example/",
            goal="g",
            answer="a",
        )
        for number in range(num_tasks)
    ]
    return TaskStream(tasks, num_seeds=1, group_size=2, seed=0)


@pytest.mark.parametrize("kind", FaultKind)
def test_a_site_is_closed_by_faults_of_its_own_that_would_come_again(kind: FaultKind) -> None:
    ledger, clock = ledger_of()
    ledger.note(faulted("a.example", kind))
    assert ledger.is_open("a.example") == (kind not in CLOSING)
    assert ledger.is_open("b.example")
    clock.now_s += 12 * HOUR_S - 1
    assert ledger.is_open("a.example") == (kind not in CLOSING)
    clock.now_s += 1
    assert ledger.is_open("a.example")


def test_a_site_that_mostly_works_stays_open_until_its_good_hours_have_faded() -> None:
    ledger, clock = ledger_of()
    for _ in range(10):
        ledger.note(ended("a.example"))
    ledger.note(faulted("a.example", FaultKind.SITE_BLOCKED))
    assert ledger.is_open("a.example")
    clock.now_s += 48 * HOUR_S
    ledger.note(faulted("a.example", FaultKind.SITE_BLOCKED))
    assert not ledger.is_open("a.example")


def test_what_says_nothing_of_a_site_is_not_counted() -> None:
    ledger, _ = ledger_of()
    for record in (
        faulted("a.example", FaultKind.BROWSER_LOST),
        faulted("a.example", FaultKind.CANCELLED),
        faulted("", FaultKind.SITE_BLOCKED),
        ended(""),
    ):
        ledger.note(record)
    assert ledger.metrics() == {}


def test_closed_sites_survive_a_kill_and_a_damaged_file_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "sites.json"
    ledger, clock = ledger_of(path)
    ledger.note(faulted("a.example", FaultKind.SITE_BLOCKED))
    ledger.note(ended("b.example", reward=0.0))
    assert ledger.metrics() == {"site/seen": 2.0, "site/closed": 1.0, "site/skipped_groups": 0.0}
    again = SiteLedger(path, expiry_s=12 * HOUR_S, clock=clock)
    assert not again.is_open("a.example")
    assert again.metrics() == ledger.metrics()
    again.note(ended("b.example"))
    again.save()
    again.note(ended("c.example"))
    again.save()
    assert b"c.example" not in path.read_bytes()
    again.save(is_last=True)
    assert b"c.example" in path.read_bytes()
    path.write_bytes(path.read_bytes()[:30])
    assert SiteLedger(path, expiry_s=HOUR_S, clock=clock).is_open("a.example")
    assert (tmp_path / "sites.json.damaged").exists()


def test_groups_of_closed_sites_are_passed_over_and_come_no_more() -> None:
    ledger, _ = ledger_of()
    stream = stream_of(12, 4)
    sites = OpenSites(stream, ledger)
    ledger.note(faulted("site1.example", FaultKind.NAME_NOT_RESOLVED))
    drawn = [sites.next_group()[0] for _ in range(9)]
    assert {request.site for request in drawn} == {
        "site0.example",
        "site2.example",
        "site3.example",
    }
    assert len({str(request.payload) for request in drawn}) == 9
    left = {int(request.group_id) for request in drawn}
    assert set(stream.state().again) == left
    assert ledger.metrics()["site/skipped_groups"] == stream.state().next_index - len(left)


def test_where_every_site_is_closed_its_tasks_are_drawn_all_the_same() -> None:
    ledger, _ = ledger_of()
    sites = OpenSites(stream_of(6, 3), ledger)
    for number in range(3):
        ledger.note(faulted(f"site{number}.example", FaultKind.CONNECTION_REFUSED))
    assert [len(sites.next_group()) for _ in range(20)] == [2] * 20


def test_a_quarter_of_sites_costs_one_group_each_until_it_expires() -> None:
    ledger, clock = ledger_of()
    sites = OpenSites(stream_of(5_000, 100), ledger)
    blocked = {f"site{number}.example" for number in random.Random(0).sample(range(100), 26)}
    lost: list[EpisodeRequest] = []
    for _ in range(3_000):
        group = sites.next_group()
        clock.now_s += 10.0
        if group[0].site in blocked:
            lost += group[:1]
            ledger.note(faulted(group[0].site, FaultKind.SITE_BLOCKED))
        else:
            ledger.note(ended(group[0].site))
    assert {request.site for request in lost} == blocked
    assert len(lost) == 26
    clock.now_s += 12 * HOUR_S
    assert sum(sites.next_group()[0].site in blocked for _ in range(400)) > 26
