"""The asyncio gate: fair, woken by every source of capacity, leaves nothing behind."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from awrl_staleness import (
    AdmissionGate,
    CapacityExceededError,
    DuplicateEpisodeError,
    GateClosedError,
    StalenessConfig,
    StalenessManager,
)


def make(eta: int = 0, batch: int = 1, concurrent: int = 100) -> StalenessManager:
    return StalenessManager(
        StalenessConfig(
            max_concurrent=concurrent, consumer_batch_size=batch, max_off_policyness=eta
        )
    )


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
            await body()

    asyncio.run(main())


def test_waiters_are_served_in_order_and_nobody_overtakes() -> None:
    async def body() -> None:
        manager = make()
        gate = AdmissionGate(manager)
        order: list[str] = []

        async def one(name: str) -> None:
            await gate.acquire(name)
            order.append(name)
            await settle()
            with pytest.raises(CapacityExceededError, match="waiters"):
                gate.acquire_nowait("pushy")
            manager.reject(name, "test")

        async with asyncio.TaskGroup() as group:
            for name in "abcd":
                group.create_task(one(name))
            group.create_task(_hold(gate, manager))
        assert order == list("abcd")
        assert gate.statistics().num_granted == 5

    run(body)


async def _hold(gate: AdmissionGate, manager: StalenessManager) -> None:
    await gate.acquire("last")


def test_a_publish_wakes_and_consuming_does_not() -> None:
    async def body() -> None:
        manager = make()
        gate = AdmissionGate(manager)
        await gate.acquire("a")
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(gate.acquire("b"))
            manager.finish("a")
            manager.consume(["a"])
            await settle()
            assert not waiting.done()
            manager.advance(1)
            await settle()
            assert waiting.done()

    run(body)


def test_an_event_of_another_thread_wakes() -> None:
    async def body() -> None:
        manager = make()
        gate = AdmissionGate(manager)
        await gate.acquire("a")
        async with asyncio.TaskGroup() as group:
            group.create_task(gate.acquire("b"))
            await settle()
            await asyncio.to_thread(manager.fault, "a", "lost")
        assert manager.statistics().num_running == 1

    run(body)


def test_closing_wakes_every_waiter_with_an_error() -> None:
    async def body() -> None:
        manager = make()
        gate = AdmissionGate(manager)
        await gate.acquire("a")
        errors: list[str] = []

        async def one(name: str) -> None:
            with pytest.raises(GateClosedError):
                await gate.acquire(name)
            errors.append(name)

        async with asyncio.TaskGroup() as group:
            for name in "bc":
                group.create_task(one(name))
            await settle()
            assert gate.statistics().num_waiting == 2
            await gate.aclose()
            await gate.aclose()
        assert errors == ["b", "c"]
        with pytest.raises(GateClosedError):
            gate.acquire_nowait("d")
        manager.reject("a", "after the close")

    run(body)


def test_a_cancelled_waiter_leaves_nothing_and_blocks_nobody() -> None:
    async def body() -> None:
        manager = make()
        gate = AdmissionGate(manager)
        await gate.acquire("a")
        async with asyncio.TaskGroup() as group:
            first = group.create_task(gate.acquire("b"))
            second = group.create_task(gate.acquire("c"))
            await settle()
            first.cancel()
            await settle()
            manager.reject("a", "test")
            await settle()
            assert second.done()
        assert manager.state("b") is None
        assert manager.state("c") is not None

    run(body)


def test_a_grant_that_meets_a_cancellation_returns_at_once() -> None:
    async def body() -> None:
        manager = make()
        gate = AdmissionGate(manager)
        await gate.acquire("a")
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(gate.acquire("b"))
            await settle()
            manager.reject("a", "test")
            gate.notify()
            waiting.cancel()
            await settle()
        assert manager.capacity().value == 1
        assert manager.statistics().num_running == 0

    run(body)


def test_groups_wait_for_room_for_all_members() -> None:
    async def body() -> None:
        manager = make(batch=4)
        gate = AdmissionGate(manager)
        await gate.acquire("a")
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(gate.acquire_group("g", 4))
            await settle()
            assert not waiting.done()
            manager.fault("a", "lost")
        assert manager.statistics().num_reserved == 4

    run(body)


def test_extra_bounds_are_read_at_each_attempt() -> None:
    async def body() -> None:
        room = {"store": 0}
        gate = AdmissionGate(make(), extra_bounds=lambda: room)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(gate.acquire("a"))
            await settle()
            assert not waiting.done()
            room["store"] = 1
            gate.notify()

    run(body)


def test_a_refused_request_reaches_the_one_who_asked() -> None:
    async def body() -> None:
        manager = make(batch=2)
        gate = AdmissionGate(manager)
        await gate.acquire("a")
        with pytest.raises(DuplicateEpisodeError):
            await gate.acquire("a")
        await gate.acquire("b")

    run(body)
