"""A task group whose failures can be caught by their type."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from awrl_rollout import RolloutError, UnwrappedTaskGroup
from hypothesis import given
from hypothesis import strategies as st


class OwnError(RolloutError):
    """Below a class that callers catch."""


FAILURES: list[Callable[[], BaseException]] = [
    lambda: OwnError("own"),
    lambda: OSError("disk"),
    lambda: TimeoutError("late"),
    lambda: KeyError("bug"),
    lambda: StopAsyncIteration(),
    lambda: ExceptionGroup("of a library", [OwnError("own"), OSError("disk")]),
    lambda: asyncio.CancelledError("nobody asked for it"),
]


def expected(error: BaseException) -> type[BaseException]:
    if isinstance(error, asyncio.CancelledError):
        return RolloutError
    return OwnError if isinstance(error, ExceptionGroup) else type(error)


async def for_ever() -> None:
    await asyncio.Event().wait()


async def fail(error: BaseException, after: int) -> None:
    for _ in range(after):
        await asyncio.sleep(0)
    raise error


async def nest(error: BaseException, after: int, depth: int) -> None:
    if not depth:
        await fail(error, after)
    async with UnwrappedTaskGroup() as group:
        group.create_task(nest(error, after, depth - 1))
        group.create_task(for_ever())


@given(st.sampled_from(FAILURES), st.integers(0, 3), st.integers(1, 3))
def test_an_error_of_a_task_leaves_every_group_as_itself(
    make: Callable[[], BaseException], after: int, depth: int
) -> None:
    error = make()
    with pytest.raises(expected(error)) as caught:
        asyncio.run(nest(error, after, depth))
    assert not isinstance(caught.value, BaseExceptionGroup)


@given(st.lists(st.tuples(st.sampled_from(FAILURES), st.integers(0, 3)), min_size=2, max_size=4))
def test_the_first_of_several_failures_leaves_and_keeps_the_others(
    chosen: list[tuple[Callable[[], BaseException], int]],
) -> None:
    errors = [(make(), after) for make, after in chosen]

    async def main() -> None:
        async with UnwrappedTaskGroup() as group:
            for error, after in errors:
                group.create_task(fail(error, after))

    with pytest.raises(BaseException) as caught:
        asyncio.run(main())
    first = min(errors, key=lambda entry: entry[1])[0]
    assert type(caught.value) is expected(first)


@pytest.mark.parametrize("make", FAILURES)
def test_an_error_of_the_body_comes_before_what_it_makes_tasks_raise(
    make: Callable[[], BaseException],
) -> None:
    async def trouble_at_the_end() -> None:
        try:
            await for_ever()
        finally:
            raise ZeroDivisionError("clean-up")

    error = make()

    async def main() -> None:
        async with UnwrappedTaskGroup() as group:
            group.create_task(trouble_at_the_end())
            await asyncio.sleep(0)
            raise error

    is_own = not isinstance(error, asyncio.CancelledError)
    with pytest.raises(type(error) if is_own else ZeroDivisionError):
        asyncio.run(main())


def test_an_error_keeps_its_own_cause() -> None:
    async def main() -> None:
        async with UnwrappedTaskGroup() as group:
            group.create_task(explain())

    async def explain() -> None:
        raise OwnError("own") from KeyError("why")

    with pytest.raises(OwnError) as caught:
        asyncio.run(main())
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_cancelled_group_cancels_its_tasks_and_passes_the_cancellation_on() -> None:
    ended: list[str] = []

    async def child() -> None:
        try:
            await for_ever()
        finally:
            ended.append("child")

    async def owner() -> None:
        async with UnwrappedTaskGroup() as group:
            group.create_task(child())

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(owner())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
        assert task.cancelled()

    asyncio.run(main())
    assert ended == ["child"]


def test_a_task_that_its_owner_cancels_is_no_failure() -> None:
    async def main() -> None:
        async with UnwrappedTaskGroup() as group:
            task = group.create_task(for_ever())
            await asyncio.sleep(0)
            task.cancel()

    asyncio.run(main())
