"""Virtual time."""

from __future__ import annotations

import asyncio

import pytest
from awrl_rollout import VirtualClock
from awrl_rollout.clock import RealClock
from awrl_rollout.concurrency import Signal


def test_time_jumps_to_the_next_timer_and_nowhere_else() -> None:
    clock = VirtualClock(start_s=100.0)
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, delay_s: float) -> None:
        await clock.sleep(delay_s)
        seen.append((name, clock.time()))

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(sleeper("long", 3600.0))
            group.create_task(sleeper("short", 0.25))
        assert RealClock().time() == clock.time()

    clock.run(main())
    assert seen == [("short", 100.25), ("long", 3700.0)]


def test_timeouts_obey_virtual_time() -> None:
    clock = VirtualClock()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await RealClock().sleep(50.0)
        assert clock.time() == 5.0

    clock.run(main())


def test_a_deadlock_is_an_error_and_not_a_hang() -> None:
    async def main() -> None:
        await Signal().wait()

    with pytest.raises(RuntimeError, match="deadlock"):
        VirtualClock().run(main())
