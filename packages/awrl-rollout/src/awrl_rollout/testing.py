"""Fakes and drivers for tests of code that uses `awrl_rollout`; nothing here sleeps.

How executor, controller and callback fit together, in one virtual second::

    async def workflow(request, context):
        await context.clock.sleep(1.0)
        return EpisodeResult(is_success=True, reward=1.0)

    async def main():
        manager = StalenessManager(StalenessConfig(
            max_concurrent=8, consumer_batch_size=4, max_off_policyness=1))
        async with WorkflowExecutor(workflow, num_slots=8) as executor:
            worker = LocalWorker(executor)
            async with RolloutController([worker], manager, source=endless_groups(2)) as controller:
                batch = await controller.prepare_batch(4)
                controller.advance(1)

    VirtualClock().run(main())

On a cluster the executor lives in an actor that awaits `executor.serve()`, its `on_finished` is a
`CallbackNotifier`, the controller's process runs `CallbackServer(controller.nudge)`, and an adapter
with the methods of `Worker` stands in for `LocalWorker`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

from awrl_rollout.admission import TaskSource
from awrl_rollout.clock import VirtualClock
from awrl_rollout.episode import EpisodeRequest, EpisodeResult
from awrl_rollout.slot import EpisodeContext, Workflow
from awrl_rollout.testing_generation import Cut, FailedAttempt, ScriptedClient
from awrl_rollout.testing_sessions import ScriptedSession, ScriptedStep, lognormal_durations
from awrl_rollout.testing_worker import ScriptedWorker

__all__ = [
    "Cut",
    "FailedAttempt",
    "LoopHost",
    "ScriptedClient",
    "ScriptedSession",
    "ScriptedStep",
    "ScriptedWorker",
    "endless_groups",
    "lognormal_durations",
    "make_group",
    "scripted_workflow",
    "settle",
]

_T = TypeVar("_T")

_SETTLE_CYCLES = 64
"""Loop cycles that `settle` yields; the longest chain of wake-ups in this package is below 20."""


async def settle(num_cycles: int = _SETTLE_CYCLES) -> None:
    """Return once every task has run until it waits for something outside of the loop."""
    for _ in range(num_cycles):
        await asyncio.sleep(0)


def make_group(
    group_id: str, num_members: int, *, payload: object = None, label: str | None = None
) -> list[EpisodeRequest]:
    """Return the requests of one group, with ids `GROUP/MEMBER`."""
    return [
        EpisodeRequest(
            episode_id=f"{group_id}/{member}",
            group_id=group_id,
            member=member,
            group_size=num_members,
            payload=payload,
            label=label,
        )
        for member in range(num_members)
    ]


def endless_groups(num_members: int, *, limit: int | None = None) -> TaskSource:
    """Return a source of groups `g0`, `g1`, ...; None after `limit` of them."""
    num_made = 0

    def source() -> list[EpisodeRequest] | None:
        nonlocal num_made
        if limit is not None and num_made >= limit:
            return None
        num_made += 1
        return make_group(f"g{num_made - 1}", num_members)

    return source


def scripted_workflow(
    duration_s: Callable[[EpisodeRequest], float] = lambda request: 0.0,
    result: Callable[[EpisodeRequest], EpisodeResult | None] = lambda request: EpisodeResult(
        is_success=True, reward=1.0
    ),
) -> Workflow:
    """Return a workflow that takes `duration_s(request)` and answers `result(request)`."""

    async def workflow(request: EpisodeRequest, context: EpisodeContext) -> EpisodeResult | None:
        await context.clock.sleep(duration_s(request))
        return result(request)

    return workflow


class LoopHost:
    """Drives asynchronous objects step by step from synchronous code, in virtual time.

    For state machines of property tests: tasks that an object started go on during each `run`.

    Args:
        clock: The virtual time.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self._runner = clock.new_runner()

    def run(self, step: Coroutine[object, object, _T]) -> _T:
        """Run one step to its end and return its result."""
        return self._runner.run(step)

    def call(self, function: Callable[[], None]) -> None:
        """Call a plain function inside the loop, then let every task run until it waits."""

        async def step() -> None:
            function()
            await settle()

        self.run(step())

    def settle(self) -> None:
        """Let every task run until it waits."""
        self.run(settle())

    def close(self) -> None:
        """Close the loop; tasks that still run are cancelled."""
        self._runner.close()
