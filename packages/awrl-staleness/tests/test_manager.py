"""The manager's accounting, event by event."""

import msgspec
import pytest
from awrl_staleness import (
    CapacityExceededError,
    ConfigError,
    IllegalTransitionError,
    LedgerSnapshot,
    StalenessConfig,
    StalenessManager,
    UnknownEpisodeError,
)
from hypothesis import given
from hypothesis import strategies as st


def make(eta: int = 0, batch: int = 4, concurrent: int = 100) -> StalenessManager:
    return StalenessManager(
        StalenessConfig(
            max_concurrent=concurrent, consumer_batch_size=batch, max_off_policyness=eta
        )
    )


def run_to_queue(manager: StalenessManager, *ids: str) -> None:
    for episode_id in ids:
        assert manager.try_admit(episode_id)
        manager.finish(episode_id)


def test_capacity_after_a_resume_is_the_budget_whatever_the_version() -> None:
    config = StalenessConfig(max_concurrent=1000, consumer_batch_size=16, max_off_policyness=2)
    for version in (0, 10):
        first = StalenessManager(config, version=version)
        manager, lost = StalenessManager.restore(config, first.snapshot())
        assert (manager.capacity().value, manager.version, lost) == (48, version, ())


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
    manager.start("a")
    assert counts() == (2, 1, 0, 0)
    manager.finish("a")
    manager.start("b")
    manager.reject("b", "filtered")
    assert counts() == (1, 0, 1, 1)


@pytest.mark.requirement("bounded-staleness")
def test_a_trajectory_is_kept_iff_it_lies_at_most_eta_behind() -> None:
    strict, loose = make(eta=0), make(eta=2)
    assert strict.is_fresh(5, 5)
    assert not strict.is_fresh(5, 6)
    assert loose.is_fresh(3, 5)
    assert not loose.is_fresh(3, 6)


@pytest.mark.requirement("generation-overlaps-training")
def test_consuming_creates_no_capacity_but_publishing_does() -> None:
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
    with pytest.raises(CapacityExceededError, match="staleness binds"):
        manager.start("e")
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


def test_the_binding_bound_is_named() -> None:
    manager = make(eta=1, batch=4, concurrent=3)
    assert manager.capacity().binding == "concurrency"
    assert manager.capacity(store=2).binding == "store"
    run_to_queue(manager, *"abcdefg")
    assert manager.capacity().binding == "staleness"
    assert "staleness binds" in manager.capacity().describe()


def test_a_skipped_update_returns_the_budget_and_keeps_the_version() -> None:
    manager = make()
    run_to_queue(manager, *"abcd")
    batch = manager.consume("abcd")
    assert manager.release_budget([batch]) == 4
    assert (manager.version, manager.capacity().value) == (0, 4)
    assert manager.statistics().num_skips == 1


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


def test_only_the_named_batches_are_settled() -> None:
    manager = make(eta=1)
    run_to_queue(manager, *"abcd")
    first = manager.consume("ab")
    manager.consume("cd")
    assert manager.advance(1, batches=[first]) == 2
    assert manager.capacity().value == 6
    with pytest.raises(UnknownEpisodeError, match="batch must be one"):
        manager.release_budget([first])


def test_a_groups_units_stay_reserved_until_it_is_closed() -> None:
    manager = make()
    assert manager.try_reserve("g", 4)
    assert manager.capacity().value == 0
    for name in "abcd":
        manager.enqueue(name, group_id="g")
        manager.start(name)
    manager.fault("a", "browser lost")
    assert manager.capacity().value == 0
    assert not manager.try_admit("stranger")
    manager.enqueue("a2", group_id="g")
    manager.start("a2")
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
    with pytest.raises(ConfigError, match="num_episodes must be between 1 and"):
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
    manager.start("a")
    manager.finish("a")
    with pytest.raises(IllegalTransitionError, match="must be closed"):
        manager.consume(["a"])
    manager.close_group("g")
    manager.consume(["a"])


def test_consume_moves_all_or_none() -> None:
    manager = make()
    run_to_queue(manager, "a")
    assert manager.try_admit("b")
    with pytest.raises(IllegalTransitionError):
        manager.consume(["a", "b"])
    with pytest.raises(ConfigError, match="distinct"):
        manager.consume(["a", "a"])
    assert manager.statistics().num_queued == 1


def test_a_version_that_does_not_advance_is_refused() -> None:
    manager = make()
    manager.advance(3)
    with pytest.raises(ConfigError, match="version must be above 3, got 3"):
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


def test_a_resume_queues_what_was_persisted_and_names_the_rest() -> None:
    manager = make(eta=1)
    run_to_queue(manager, "queued", "unsaved", "training")
    assert manager.try_admit("running")
    manager.enqueue("waiting")
    manager.consume(["training"])
    saved = msgspec.json.encode(manager.snapshot())
    restored, lost = StalenessManager.restore(
        manager.config,
        msgspec.json.decode(saved, type=LedgerSnapshot),
        persisted=["queued", "training", "running"],
    )
    assert lost == ("unsaved", "running", "waiting")
    assert restored.statistics().num_queued == 2
    assert restored.capacity().value == 6
    restored.consume(["queued", "training"])
    restored.advance(1)
    assert restored.capacity().value == 8


def test_tokens_from_weights_that_no_longer_exist_are_not_kept() -> None:
    manager = make(eta=1)
    manager.advance(1)
    run_to_queue(manager, "a")
    restored, lost = StalenessManager.restore(
        manager.config, manager.snapshot(), persisted=["a"], version=0
    )
    assert lost == ("a",)
    assert restored.capacity().value == 8


def test_listeners_hear_what_may_create_capacity_until_they_unsubscribe() -> None:
    manager = make()
    heard: list[int] = []
    stop = manager.subscribe(lambda: heard.append(manager.capacity().value))
    run_to_queue(manager, "a")
    manager.advance(1)
    stop()
    manager.advance(2)
    assert heard == [3, 3]
