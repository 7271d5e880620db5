"""The pieces of structured concurrency that asyncio lacks.

* `Signal`: a condition for state that changes synchronously inside one event loop.
* `TaskScope`: a TaskGroup for objects that are themselves `async with` blocks.
* `is_cancelled`: tells whether a `CancelledError` was meant for this task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from awrl_rollout.errors import RolloutError


def is_cancelled() -> bool:
    """Return whether somebody asked the running task to end.

    A `CancelledError` that arrives otherwise was raised by the code that the task awaits, for
    example because it awaited a future that somebody else cancelled: it is an ordinary failure.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


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
        async with asyncio.timeout(timeout_s):
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


class TaskScope:
    """Owns the loops of one object from its `__aenter__` to its `__aexit__`.

    Invariants: no task outlives the block; an error of the body leaves the block as itself, not
    inside an ExceptionGroup; an error of a task ends the body and leaves as a group.
    """

    def __init__(self) -> None:
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_entered(self) -> bool:
        """Whether tasks may be started."""
        return self._group is not None

    async def enter(self) -> None:
        """Open the scope; to be left by the same task."""
        group = asyncio.TaskGroup()
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
