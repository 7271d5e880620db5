"""The circuit breaker: groups and sites, a trial, and only then the end."""

from __future__ import annotations

import random

import pytest
from awrl_rollout import EpisodeResult, Fault, FaultBreaker, FaultKind, StarvedError
from awrl_rollout.episode import record_of
from awrl_rollout.testing import make_group
from hypothesis import given, settings
from hypothesis import strategies as st

LOST = FaultKind.BROWSER_LOST
WALL = FaultKind.SITE_BLOCKED
DEAD = FaultKind.NAME_NOT_RESOLVED


class Rig:
    """A breaker that is told of groups, each with its own id, one second apart."""

    def __init__(
        self, *, max_share: float | None = 0.5, window: int = 16, patience_s: float = 30.0
    ) -> None:
        self.breaker = FaultBreaker(max_share=max_share, window=window, patience_s=patience_s)
        self.now_s = 0.0
        self.num_groups = 0

    def end(self, *kinds: FaultKind | None, site: str = "x.org", message: str = "") -> None:
        """Tell of one group, whose members ended so: None is well."""
        self.num_groups += 1
        self.now_s += 1.0
        group = make_group(f"g{self.num_groups}", len(kinds), site=site)
        for request, kind in zip(group, kinds, strict=True):
            answer = (
                EpisodeResult(is_success=False)
                if kind is None
                else Fault(kind=kind, boundary="test", message=message)
            )
            self.breaker.note(request, record_of(request, answer), self.now_s)
        self.breaker.forget(group[0].group_id, self.now_s)


def test_a_few_lost_groups_at_the_start_do_nothing() -> None:
    rig = Rig()
    for _ in range(7):
        rig.end(LOST)
    assert not rig.breaker.is_on_trial
    rig.breaker.check()


def test_siblings_count_once() -> None:
    rig = Rig()
    rig.end(*[WALL] * 64)
    rig.end(*[LOST] * 64)
    assert not rig.breaker.is_on_trial


def test_a_group_that_is_over_and_nobody_was_well_is_lost() -> None:
    rig = Rig()
    for _ in range(8):
        rig.end(LOST, *[FaultKind.CANCELLED] * 7)
    assert rig.breaker.is_on_trial


def test_a_group_with_one_member_that_ended_is_well() -> None:
    rig = Rig()
    for _ in range(99):
        rig.end(LOST, LOST, None, None)
    assert not rig.breaker.is_on_trial


def test_lost_groups_in_a_row_put_it_on_trial_and_one_that_is_well_ends_that() -> None:
    rig = Rig()
    for number in range(8):
        rig.end(LOST, site=f"s{number}")
    assert rig.breaker.is_on_trial
    assert "starts are held back" in rig.breaker.describe()
    assert not rig.breaker.may_start(rig.now_s)
    rig.end(None)
    assert rig.breaker.may_start(rig.now_s)
    assert rig.breaker.describe() == ""


def test_on_trial_starts_come_one_by_one_and_ever_later() -> None:
    rig = Rig(patience_s=1e9)
    for _ in range(8):
        rig.end(LOST)
    starts: list[float] = []
    for now_s in range(8, 80):
        if rig.breaker.may_start(float(now_s)):
            rig.breaker.started(float(now_s))
            starts.append(now_s)
    assert starts == [9, 11, 15, 23, 38, 53, 68]


def test_it_opens_when_nothing_got_through_for_long_and_says_that_it_is_everything() -> None:
    rig = Rig(patience_s=30.0)
    for number in range(8 + 30):
        rig.breaker.check()
        rig.end(DEAD, site=f"s{number % 5}", message="s.org: no such name\n more")
    with pytest.raises(
        StarvedError, match=r"16 in a row .* on 5 sites: this is not one site"
    ) as no:
        rig.breaker.check()
    assert str(no.value).endswith("\n  the last name_not_resolved: s.org: no such name")
    rig.end(None)
    assert rig.breaker.is_open
    assert not rig.breaker.may_start(1e9)


def test_a_sign_of_life_of_any_site_ends_a_trial_for_silence() -> None:
    rig = Rig(window=64, patience_s=5.0)
    for number in range(500):
        rig.end(WALL if number % 9 == 8 else DEAD, site=f"s{number}")
        if number % 50 == 49:
            rig.end(None)
    rig.breaker.check()


def test_walls_alone_stop_a_run_only_after_a_window_of_them_and_the_patience() -> None:
    rig = Rig(window=16, patience_s=10.0)
    for _ in range(15):
        rig.end(WALL)
    assert not rig.breaker.is_on_trial
    for _ in range(11):
        rig.end(WALL)
    with pytest.raises(StarvedError, match=r"site_blocked 16\) on x\.org, the only site of late"):
        rig.breaker.check()


def test_an_infrastructure_that_loses_most_groups_is_told_with_its_kinds() -> None:
    rig = Rig(window=16, patience_s=10.0)
    for number in range(48):
        rig.end(None if number % 4 == 3 else LOST, site=f"s{number % 7}", message="no browser")
    with pytest.raises(StarvedError, match=r"must be at most 0\.5 .* 0\.7\d \(browser_lost \d+\)"):
        rig.breaker.check()


def test_groups_count_as_lost_to_an_infrastructure_that_ends_most_of_their_episodes() -> None:
    rig = Rig(window=16, patience_s=10.0)
    for _ in range(48):
        rig.end(None, LOST, LOST, LOST)
    with pytest.raises(StarvedError, match=r"got 1\.00 \(browser_lost"):
        rig.breaker.check()


def test_an_infrastructure_that_recovers_on_trial_goes_on() -> None:
    rig = Rig(window=16, patience_s=1e9)
    for number in range(16):
        rig.end(None if number % 4 == 3 else LOST, site=f"s{number}")
    assert rig.breaker.is_on_trial
    for number in range(8):
        rig.end(None, site=f"s{number}")
    assert not rig.breaker.is_on_trial


def test_one_site_that_loses_all_of_its_groups_is_not_the_infrastructure() -> None:
    rig = Rig(window=16, patience_s=0.0)
    for number in range(200):
        rig.end(LOST, site="crashes.org")
        rig.end(LOST, site="crashes.org")
        rig.end(None, site=f"s{number % 3}")
    rig.breaker.check()
    assert not rig.breaker.is_on_trial


def test_cancelled_episodes_and_dead_workers_are_not_counted() -> None:
    rig = Rig(window=1, patience_s=0.0)
    for _ in range(9):
        rig.end(FaultKind.WORKER_LOST)
        rig.end(FaultKind.CANCELLED)
    assert not rig.breaker.is_on_trial


@pytest.mark.parametrize("max_share", [None, 1.0])
def test_it_can_be_switched_off(max_share: float | None) -> None:
    rig = Rig(max_share=max_share, window=1, patience_s=0.0)
    for _ in range(9):
        rig.end(LOST)
    assert not rig.breaker.is_on_trial


def test_the_last_message_of_each_kind_is_told_shortened_to_a_line() -> None:
    rig = Rig(window=3, patience_s=0.0)
    rig.end(FaultKind.TIMEOUT, message="x.org did not answer")
    rig.end(FaultKind.PAGE_ERROR, message="an earlier one")
    for _ in range(2):
        rig.end(FaultKind.PAGE_ERROR, message=f"script threw: a is not b {'.' * 999}\n  at line 3")
    with pytest.raises(StarvedError) as caught:
        rig.breaker.check()
    _, first, *_ = str(caught.value).splitlines()
    assert first.startswith("  the last page_error: script threw: a is not b ..")
    assert len(first) < 450


SITE_KINDS = [kind for kind in FaultKind if kind.is_of_site]


@given(seed=st.integers(0, 10_000), down=st.floats(0.0, 0.5))
@settings(max_examples=30, deadline=None)
def test_sites_that_are_down_never_stop_a_run_while_others_are_up(seed: int, down: float) -> None:
    rng, rig = random.Random(seed), Rig(window=64, patience_s=60.0)
    bad = {f"s{number}": rng.choice(SITE_KINDS) for number in range(int(100 * down))}
    for _ in range(2000):
        site = f"s{rng.randrange(100)}"
        rig.end(bad.get(site), site=site)
        rig.now_s += 15.0 * rig.breaker.is_on_trial
    rig.breaker.check()
