"""The manager's accounting, event by event."""

from __future__ import annotations

import threading

import pytest
from awrl_staleness import StalenessConfig, StalenessError, StalenessManager
from hypothesis import given
from hypothesis import strategies as st


def make(eta: int = 0, batch: int = 4, concurrent: int = 100, version: int = 0) -> StalenessManager:
    config = StalenessConfig(
        max_concurrent=concurrent, consumer_batch_size=batch, max_off_policyness=eta
    )
    return StalenessManager(config, version=version)


def run_to_queue(manager: StalenessManager, *ids: str) -> None:
    for episode_id in ids:
        assert manager.try_admit(episode_id)
        manager.finish(episode_id)


def test_capacity_after_a_resume_is_the_budget_whatever_the_version() -> None:
    config = StalenessConfig(max_concurrent=1000, consumer_batch_size=16, max_off_policyness=2)
    for version in (0, 10):
        manager = StalenessManager(config, version=version)
        assert (manager.capacity().value, manager.version) == (48, version)


def test_queued_running_accepted_and_rejected_are_told_apart() -> None:
    manager = make()

    def counts() -> tuple[int, int, int, int]:
        now = manager.statistics()
        parts = (now.num_enqueued, now.num_running, now.num_accepted, now.num_rejected)
        assert min(parts) >= 0
        assert sum(parts) == now.num_submitted
        return parts

    for name in "abc":
        manager.enqueue(name)
        counts()
    assert manager.capacity().bounds["concurrency"] == 100
    assert manager.try_start("a")
    assert counts() == (2, 1, 0, 0)
    manager.finish("a")
    assert manager.try_start("b")
    manager.reject("b", "filtered")
    assert counts() == (1, 0, 1, 1)


@pytest.mark.requirement("bounded-staleness")
def test_a_trajectory_is_kept_iff_it_lies_at_most_eta_behind() -> None:
    strict, loose = make(eta=0, version=5), make(eta=2, version=5)
    assert [strict.is_fresh(oldest) for oldest in (4, 5, 6)] == [False, True, True]
    assert [loose.is_fresh(oldest) for oldest in (2, 3, 5)] == [False, True, True]


@given(oldest=st.integers(0, 50), current=st.integers(0, 50), eta=st.integers(0, 5))
def test_one_version_more_ends_the_freshness_of_what_lies_eta_behind(
    oldest: int, current: int, eta: int
) -> None:
    manager = make(eta=eta, version=current)
    was_fresh = manager.is_fresh(oldest)
    assert was_fresh == (current - oldest <= eta)
    manager.advance(current + 1)
    assert manager.is_fresh(oldest) == (was_fresh and current - oldest != eta)


@pytest.mark.requirement("generation-overlaps-training")
def test_consuming_creates_no_capacity_but_advancing_does() -> None:
    manager = make()
    run_to_queue(manager, *"abcd")
    assert manager.capacity().value == 0
    manager.consume("abcd")
    assert manager.capacity().value == 0
    manager.advance(1)
    assert manager.capacity().value == 4


def test_every_entry_point_is_refused_while_capacity_is_zero() -> None:
    manager = make()
    run_to_queue(manager, *"abcd")
    manager.enqueue("e")
    assert not manager.try_start("e")
    assert not manager.try_admit("f")
    assert not manager.try_reserve("g", 1)
    assert manager.is_live("e")
    assert manager.statistics().num_running == 0


def test_eleven_hundred_finished_episodes_are_all_retrievable() -> None:
    manager = make(batch=2000, concurrent=2000)
    ids = [f"e{index}" for index in range(1100)]
    run_to_queue(manager, *ids)
    manager.consume(ids)
    assert manager.advance(1) == 1100


def test_a_discarded_item_leaves_a_hole_that_can_be_filled() -> None:
    manager = make()
    run_to_queue(manager, *"abc")
    assert manager.try_admit("d")
    manager.reject("d", "always fails")
    assert manager.capacity().value == 1
    run_to_queue(manager, "e")
    assert manager.capacity().value == 0
    manager.reject("a", "collector discarded it")
    assert manager.capacity().value == 1


def test_a_skipped_update_returns_the_budget_and_keeps_the_version() -> None:
    manager = make()
    run_to_queue(manager, *"abcd")
    batch = manager.consume("abcd")
    assert manager.release_budget([batch]) == 4
    assert (manager.version, manager.capacity().value) == (0, 4)


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=30),
    skips=st.lists(st.booleans(), min_size=30, max_size=30),
)
def test_uneven_batches_and_skipped_updates_neither_starve_nor_drift(
    sizes: list[int], skips: list[bool]
) -> None:
    """The published formula, which counts versions, drifts by B - size and by B a skip."""
    manager, drift = make(eta=1, batch=4), 0
    for step, (size, is_skipped) in enumerate(zip(sizes, skips, strict=False)):
        size = min(size, manager.capacity().value)
        ids = [f"{step}/{index}" for index in range(size)]
        run_to_queue(manager, *ids)
        batch = manager.consume(ids)
        if is_skipped:
            manager.release_budget([batch])
        else:
            manager.advance(manager.version + 1)
        drift += 4 * (not is_skipped) - size
        assert manager.capacity().bounds["staleness"] == manager.config.budget
        published = (1 + manager.version + 1) * 4 - manager.statistics().finished
        assert published == manager.config.budget + drift


def test_only_the_named_batches_are_released() -> None:
    manager = make(eta=1)
    run_to_queue(manager, *"abcd")
    first = manager.consume("ab")
    manager.consume("cd")
    assert manager.advance(1, batches=[first]) == 2
    assert manager.capacity().value == 6
    with pytest.raises(StalenessError, match="still hold their budget"):
        manager.release_budget([first])


@pytest.mark.parametrize("batches", [[0, 0], [0, 1, 0], [0, 7], [7, 7]])
def test_batches_that_are_named_twice_or_unknown_change_nothing(batches: list[int]) -> None:
    manager = make()
    run_to_queue(manager, *"abcd")
    assert [manager.consume("ab"), manager.consume("cd")] == [0, 1]
    before = manager.statistics()
    with pytest.raises(StalenessError, match="batches must be distinct numbers"):
        manager.advance(1, batches=batches)
    with pytest.raises(StalenessError, match="batches must be distinct numbers"):
        manager.release_budget(batches)
    assert manager.statistics() == before
    assert manager.advance(1) == 4
    assert manager.capacity().value == 4


def test_a_group_under_the_id_of_a_closed_one_is_another_group() -> None:
    manager = make()
    for first in ("a", "b"):
        assert manager.try_reserve("g", 1)
        manager.enqueue(first, group_id="g")
        assert manager.try_start(first)
        manager.finish(first)
        manager.close_group("g")
    assert manager.try_reserve("g", 2)
    manager.consume(["a"])
    manager.reject("b", "filtered")
    assert manager.statistics().num_reserved == 2
    assert manager.capacity().value == 1
    manager.close_group("g")
    assert manager.capacity().value == 3


def test_a_groups_units_stay_reserved_until_it_is_closed() -> None:
    manager = make()
    assert manager.try_reserve("g", 4)
    assert manager.capacity().value == 0
    for name in "abcd":
        manager.enqueue(name, group_id="g")
        assert manager.try_start(name)
    manager.fault("a", "browser lost")
    assert manager.capacity().value == 0
    assert not manager.try_admit("stranger")
    manager.enqueue("a2", group_id="g")
    assert manager.try_start("a2")
    for name in ("a2", "b", "c"):
        manager.finish(name)
    manager.reject("d", "filtered")
    manager.close_group("g")
    assert manager.capacity().value == 1


def test_a_group_needs_room_for_all_its_members_and_one_slot() -> None:
    manager = make(batch=4, concurrent=1)
    assert manager.try_admit("x")
    assert not manager.try_reserve("g", 3)
    manager.finish("x")
    assert not manager.try_reserve("g", 4)
    assert manager.try_reserve("g", 3)
    with pytest.raises(StalenessError, match="num_episodes must be between 1 and"):
        manager.try_reserve("h", 5)


def test_the_bound_that_refuses_a_group_is_named_whatever_binds_for_one_episode() -> None:
    manager = make(batch=4, concurrent=1)
    run_to_queue(manager, "a", "b")
    assert manager.capacity().binding == "concurrency"
    assert manager.refusing_bound(3) == "staleness"
    assert manager.refusing_bound(2, store=1) == "store"
    assert manager.refusing_bound(2) is None
    assert manager.try_admit("c")
    assert manager.refusing_bound(1) == "concurrency"


def test_a_member_of_an_open_group_cannot_be_consumed() -> None:
    manager = make()
    assert manager.try_reserve("g", 1)
    manager.enqueue("a", group_id="g")
    assert manager.try_start("a")
    manager.finish("a")
    with pytest.raises(StalenessError, match="must be closed"):
        manager.consume(["a"])
    manager.close_group("g")
    manager.consume(["a"])


def test_consume_moves_all_or_none() -> None:
    manager = make()
    run_to_queue(manager, "a")
    assert manager.try_admit("b")
    with pytest.raises(StalenessError, match="must be finished to become consumed, got running"):
        manager.consume(["a", "b"])
    with pytest.raises(StalenessError, match="distinct"):
        manager.consume(["a", "a"])
    assert manager.statistics().num_queued == 1


def test_a_version_that_does_not_advance_is_refused() -> None:
    manager = make()
    manager.advance(3)
    with pytest.raises(StalenessError, match="version must be above 3, got 3"):
        manager.advance(3)


def test_ages_and_waste_are_split() -> None:
    manager = make(eta=2)
    assert manager.try_admit("a", label="hard")
    assert manager.try_admit("b", label="easy")
    manager.advance(1)
    manager.finish("a", oldest_version=0)
    manager.finish("b")
    manager.advance(2)
    manager.consume(["a"])
    manager.advance(3)
    manager.expire("b")
    seen = manager.statistics()
    assert seen.off_policyness == {2: 1}
    assert seen.in_flight_age == {1: 2}
    assert seen.in_queue_age == {1: 1, 2: 1}
    assert seen.wasted_by_reason == {"expired": 1}
    assert seen.wasted_by_label == {"easy": 1}
    assert seen.mean_off_policyness == 2.0
    assert seen.metrics()["staleness/wasted_episodes"] == 1.0


def test_listeners_hear_what_may_create_capacity_until_they_unsubscribe() -> None:
    manager = make()
    heard: list[int] = []
    stop = manager.subscribe(lambda: heard.append(manager.capacity().value))
    run_to_queue(manager, "a")
    manager.advance(1)
    stop()
    manager.advance(2)
    assert heard == [3, 3]


def test_two_threads_never_share_one_unit() -> None:
    manager = make(batch=50, concurrent=50)
    granted: list[str] = []
    gate = threading.Barrier(4)

    def grab(name: str) -> None:
        gate.wait()
        names = [f"{name}{index}" for index in range(100)]
        granted.extend(key for key in names if manager.try_admit(key))

    threads = [threading.Thread(target=grab, args=(name,)) for name in "abcd"]  # noqa: TID251 - the subject
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == 50
    assert manager.statistics().num_running == 50


@pytest.mark.parametrize("number", [float("nan"), 2.5, "3", True])
def test_a_number_that_is_not_whole_is_refused_and_changes_nothing(number: int) -> None:
    config = StalenessConfig(max_concurrent=4, consumer_batch_size=4, max_off_policyness=1)
    manager = StalenessManager(config)
    manager.try_admit("a")
    before = manager.statistics()
    with pytest.raises(StalenessError, match="whole"):
        StalenessManager(config, version=number)
    with pytest.raises(StalenessError, match="whole"):
        manager.advance(number)
    with pytest.raises(StalenessError, match="whole"):
        manager.try_reserve("g", number)
    with pytest.raises(StalenessError, match="whole"):
        manager.finish("a", oldest_version=number)
    assert manager.statistics() == before
