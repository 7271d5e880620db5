"""The pieces of structured concurrency that asyncio lacks.

* `Signal`: a condition for state that changes synchronously inside one event loop.
* `UnwrappedTaskGroup`: a TaskGroup whose failure can be caught by its type.
* `TaskScope`: one for objects that are themselves `async with` blocks.
* `is_cancelled`: tells whether a `CancelledError` was meant for this task.
* `raise_if_ending`: what every boundary asks before it takes an error of user code as data.
* `deadline`: `asyncio.timeout` that refuses a limit which would never pass.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from types import TracebackType
from typing import Any, TypeVar, cast

from awrl_rollout.errors import RolloutError

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

ENDS_PROCESS = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What is never taken for a failure of user code; the last one only ends a coroutine."""


def is_cancelled() -> bool:
    """Return whether somebody asked the running task to end.

    A `CancelledError` that arrives otherwise was raised by the code that the task awaits, for
    example because it awaited a future that somebody else cancelled: it is an ordinary failure.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def raise_if_ending(error: BaseException) -> None:
    """Return when an error of user code is that code's own failure, whatever its type.

    Whether the task is to end is asked before the kind of the error: a clean-up that fails while
    its task is cancelled must not keep the task alive.

    Raises:
        CancelledError: Somebody asked the running task to end.
        BaseException: The error itself, when it ends the process or closes the coroutine.
    """
    if isinstance(error, ENDS_PROCESS):
        raise error
    if is_cancelled():
        raise asyncio.CancelledError from error


def text_of(error: BaseException) -> str:
    """Return an error's text, also of one that cannot say it: it is user code too."""
    try:
        return str(error)
    except Exception as unprintable:
        logger.warning("an error of user code has no text", exc_info=unprintable)
        return "(an error without text)"


def deadline(limit_s: float | None) -> asyncio.Timeout:
    """Return the context that ends its block with a TimeoutError after so many seconds.

    Raises:
        ValueError: The limit is not a number.
    """
    require_limit(limit_s)
    return asyncio.timeout(limit_s)


def require_limit(limit_s: float | None) -> None:
    """Pass silently when a limit is a number of seconds, or None.

    Raises:
        ValueError: It is NaN: it would never pass, and would keep other timers of the loop from
            their turn.
    """
    if limit_s is not None and math.isnan(limit_s):
        raise ValueError(f"a limit must be a number of seconds, got {limit_s}. Use None for none.")


class Signal:
    """Wakes every waiter, which then checks its own predicate.

    `asyncio.Condition` needs an await to notify; here the one who changes the state is often a
    plain method. Nothing is lost: a waiter checks, registers and suspends in one step.
    """

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Wake every waiter; call after each change of the state that they look at."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_for(
        self, predicate: Callable[[], bool], *, timeout_s: float | None = None
    ) -> None:
        """Return once `predicate()` is true.

        Raises:
            TimeoutError: It was not true within `timeout_s`.
        """
        async with deadline(timeout_s):
            while not predicate():
                await self.wait()

    async def wait(self) -> None:
        """Return at the next `notify`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)


class UnwrappedTaskGroup(asyncio.TaskGroup):
    """An `asyncio.TaskGroup` whose failure is the first error itself, not an ExceptionGroup.

    So a caller that catches errors by type catches those of tasks too. Where several failed, the group
    of all is the first one's cause, unless it has one of its own. A `CancelledError` that a task raises
    though nobody cancelled it is a failure as well, a `RolloutError`.
    """

    async def __aexit__(
        self,
        et: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Wait for the tasks; raise what failed first."""
        is_body_first = isinstance(exc, Exception) and not is_cancelled()
        try:
            await super().__aexit__(et, exc, tb)
        except BaseExceptionGroup as failures:
            first = exc if is_body_first and exc is not None else _first_leaf(failures)
            others = failures if len(failures.exceptions) > 1 else None
            raise first from first.__cause__ or others

    def create_task(
        self,
        coro: Generator[Any, None, ResultT] | Coroutine[Any, Any, ResultT],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[ResultT]:
        """Run a coroutine as a task of this group."""
        refusing = _refusing_own_cancellation(cast("Coroutine[Any, Any, ResultT]", coro))
        task = super().create_task(refusing, name=name, context=context)
        task.add_done_callback(lambda _: coro.close())  # cancelled before it began, it never ran
        return task


async def _refusing_own_cancellation(coro: Coroutine[Any, Any, ResultT]) -> ResultT:
    try:
        return await coro
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        raise RolloutError(
            "a task must not raise CancelledError unless it is cancelled."
        ) from error


def _first_leaf(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error that is no cancellation: nobody asked the owner of the group to end."""
    _, others = failures.split(asyncio.CancelledError)
    if others is None:
        return RolloutError("a task must not raise CancelledError unless it is cancelled.")
    first = others.exceptions[0]
    return _first_leaf(first) if isinstance(first, BaseExceptionGroup) else first


class TaskScope:
    """Owns the loops of one object from its `__aenter__` to its `__aexit__`.

    Invariants: no task outlives the block; an error of the body leaves the block as itself; an error
    of a task ends the body and leaves as itself.
    """

    def __init__(self) -> None:
        self._group: UnwrappedTaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_entered(self) -> bool:
        """Whether tasks may be started."""
        return self._group is not None

    async def enter(self) -> None:
        """Open the scope; to be left by the same task."""
        group = UnwrappedTaskGroup()
        await group.__aenter__()
        self._group = group

    def start(self, loop: Coroutine[object, object, None]) -> None:
        """Run a coroutine as a child.

        Raises:
            RolloutError: The scope is not open.
        """
        if self._group is None:
            loop.close()
            raise RolloutError("the owner must be entered first. Use `async with` around it.")
        task = self._group.create_task(loop)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Ask every child to end."""
        for task in self._tasks:
            task.cancel()

    async def leave(self, error: BaseException | None) -> None:
        """Return when every child has ended."""
        group, self._group = self._group, None
        if group is None:
            return
        if isinstance(error, asyncio.CancelledError):
            await group.__aexit__(type(error), error, error.__traceback__)
        else:
            await group.__aexit__(None, None, None)
