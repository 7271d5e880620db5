"""The capacity formula, and the bound that it names."""

from __future__ import annotations

import pytest
from awrl_staleness import Capacity, StalenessConfig, StalenessError, StalenessManager
from hypothesis import given
from hypothesis import strategies as st

COUNT = st.integers(0, 12)


def make(eta: int = 0, batch: int = 4, concurrent: int = 100) -> StalenessManager:
    return StalenessManager(
        StalenessConfig(
            max_concurrent=concurrent, consumer_batch_size=batch, max_off_policyness=eta
        )
    )


@pytest.mark.requirement("bounded-staleness")
@given(eta=st.integers(0, 5), batch=st.integers(1, 8), version=COUNT, extra=COUNT, running=COUNT)
def test_with_b_episodes_a_version_it_is_the_published_formula(
    eta: int, batch: int, version: int, extra: int, running: int
) -> None:
    manager = make(eta, batch, concurrent=10_000)
    for step in range(1, version + 1):
        ids = [f"{step}/{index}" for index in range(batch)]
        for episode_id in ids:
            assert manager.try_admit(episode_id)
            manager.finish(episode_id)
        manager.consume(ids)
        manager.advance(step)
    accepted = version * batch
    for index in range(extra):
        if manager.try_admit(f"queued/{index}"):
            manager.finish(f"queued/{index}")
            accepted += 1
    running = sum(manager.try_admit(f"running/{index}") for index in range(running))
    room = (eta + version + 1) * batch - (accepted + running)
    assert manager.capacity().bounds["staleness"] == room
    assert manager.capacity().value == max(0, room)


def test_a_tie_is_named_in_a_fixed_order() -> None:
    assert make(batch=3, concurrent=3).capacity(store=3).binding == "concurrency"


def test_a_bound_below_zero_reads_as_no_capacity() -> None:
    over = make(batch=2, concurrent=2).capacity(store=-3)
    assert over == Capacity(
        value=0, binding="store", bounds={"concurrency": 2, "staleness": 2, "store": -3}
    )
    assert over.describe() == (
        "0 more episodes may start; store binds (concurrency 2, staleness 2, store -3)"
    )


def test_an_extra_bound_cannot_take_a_builtin_name() -> None:
    manager = make()
    manager.enqueue("a")
    for ask in (
        lambda: manager.capacity(staleness=3),
        lambda: manager.try_admit("b", staleness=0),
        lambda: manager.try_start("a", concurrency=3),
        lambda: manager.try_reserve("g", 1, staleness=0),
        lambda: manager.refusing_bound(1, staleness=0),
    ):
        with pytest.raises(StalenessError, match=r"name of its own, got '(staleness|concurrency)'"):
            ask()
    assert manager.statistics().num_running == manager.statistics().num_reserved == 0


def test_an_extra_bound_without_room_refuses_a_start_but_not_a_groups_member() -> None:
    manager = make()
    assert manager.try_reserve("g", 1)
    manager.enqueue("member", group_id="g")
    manager.enqueue("alone")
    assert not manager.try_admit("b", store=0)
    assert not manager.try_start("alone", store=0)
    assert manager.try_start("member", store=0)
    assert manager.try_start("alone", store=1)


def test_the_binding_bound_is_named() -> None:
    manager = make(eta=1, batch=4, concurrent=3)
    assert manager.capacity().binding == "concurrency"
    assert manager.capacity(store=2).binding == "store"
    for name in "abcdefg":
        assert manager.try_admit(name)
        manager.finish(name)
    assert manager.capacity().binding == "staleness"
    assert "staleness binds" in manager.capacity().describe()
