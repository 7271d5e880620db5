"""A TaskGroup for objects that are themselves `async with` blocks.

Invariants: no task outlives the block; an error of the body leaves the block as itself, not inside
an ExceptionGroup; an error of a task ends the body and leaves as a group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from awrl_rollout.errors import ClosedError


class TaskScope:
    """Owns the loops of one object from its `__aenter__` to its `__aexit__`."""

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
            ClosedError: The scope is not open.
        """
        if self._group is None:
            loop.close()
            raise ClosedError("the owner must be entered first. Use `async with` around it.")
        task = self._group.create_task(loop)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Ask every child to end."""
        for task in self._tasks:
            task.cancel()

    async def leave(self, error: BaseException | None) -> None:
        """Return when every child has ended.

        Args:
            error: What ended the block's body.
        """
        group, self._group = self._group, None
        if group is None:
            return
        if isinstance(error, asyncio.CancelledError):
            await group.__aexit__(type(error), error, error.__traceback__)
        else:
            await group.__aexit__(None, None, None)
