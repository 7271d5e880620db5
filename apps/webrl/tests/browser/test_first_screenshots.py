"""First screenshots that siblings share."""

from __future__ import annotations

import asyncio

import pytest
from webrl.browser.first_screenshots import FirstScreenshots


def test_those_who_come_together_share_one_screenshot() -> None:
    taken: list[int] = []

    async def main() -> tuple[list[bytes], int]:
        frames, gate = FirstScreenshots(8), asyncio.Event()

        async def take() -> bytes:
            taken.append(1)
            await gate.wait()
            return b"frame"

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(frames.get("seed", take)) for _ in range(5)]
            await asyncio.sleep(0)
            gate.set()
        return [task.result() for task in tasks], frames.num_shared

    assert asyncio.run(main()) == ([b"frame"] * 5, 4)
    assert len(taken) == 1


def test_another_seed_takes_its_own() -> None:
    async def main() -> list[bytes]:
        frames = FirstScreenshots(8)

        async def take(name: bytes) -> bytes:
            return name

        return [
            await frames.get("one", lambda: take(b"one")),
            await frames.get("two", lambda: take(b"two")),
        ]

    assert asyncio.run(main()) == [b"one", b"two"]


def test_a_fault_reaches_only_the_one_who_met_it() -> None:
    async def main() -> list[object]:
        frames, gate = FirstScreenshots(8), asyncio.Event()

        async def fail() -> bytes:
            await gate.wait()
            raise ConnectionError("gone")

        async def take() -> bytes:
            return b"own"

        async def caught() -> object:
            with pytest.raises(ConnectionError):
                await frames.get("seed", fail)
            return None

        async with asyncio.TaskGroup() as group:
            first = group.create_task(caught())
            await asyncio.sleep(0)
            second = group.create_task(frames.get("seed", take))
            await asyncio.sleep(0)
            gate.set()
        return [first.result(), second.result()]

    assert asyncio.run(main()) == [None, b"own"]


def test_a_waiter_that_is_cancelled_does_not_cancel_the_others() -> None:
    async def main() -> bytes:
        frames, gate = FirstScreenshots(8), asyncio.Event()

        async def take() -> bytes:
            await gate.wait()
            return b"frame"

        async with asyncio.TaskGroup() as group:
            group.create_task(frames.get("seed", take))
            await asyncio.sleep(0)
            waiter = group.create_task(frames.get("seed", take))
            other = group.create_task(frames.get("seed", take))
            await asyncio.sleep(0)
            waiter.cancel()
            await asyncio.sleep(0)
            gate.set()
        return other.result()

    assert asyncio.run(main()) == b"frame"


def test_the_oldest_is_forgotten_first() -> None:
    async def main() -> list[bytes]:
        frames, names = FirstScreenshots(2), iter([b"1", b"2", b"3", b"4"])

        async def take() -> bytes:
            return next(names)

        return [await frames.get(key, take) for key in ("a", "b", "c", "c", "a")]

    assert asyncio.run(main()) == [b"1", b"2", b"3", b"3", b"4"]
