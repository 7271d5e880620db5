"""A TaskGroup whose failure is the first error itself, so that callers can catch it by type."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


@asynccontextmanager
async def task_scope() -> AsyncGenerator[asyncio.TaskGroup]:
    """Run tasks as `asyncio.TaskGroup` does; raise the first failure instead of a group.

    The group stays attached as the cause, with every other failure.
    """
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failures:
        raise first_leaf(failures) from failures


def first_leaf(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first failure that is not a group."""
    first = failures.exceptions[0]
    return first_leaf(first) if isinstance(first, BaseExceptionGroup) else first
