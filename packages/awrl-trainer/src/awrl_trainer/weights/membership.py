"""Who is in the group of a publisher, who is in quarantine, and how a group is formed.

Invariants:

* A group consists of all receivers that are not in quarantine, in the order they were given.
* A group's name is never used twice.
* Every call to a receiver or to the source has a deadline, and its failure is a value.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import TypeVar

from awrl_trainer.boundary import Outcome, outcome_of_async
from awrl_trainer.errors import PublishTimeoutError
from awrl_trainer.weights.manifest import PublishPlan, check_index
from awrl_trainer.weights.protocols import (
    GroupMembership,
    GroupRequest,
    IndexedReceiver,
    WeightReceiver,
    WeightSource,
)
from awrl_trainer.weights.report import PublisherConfig

__all__ = ["SOURCE_GRACE_S", "Membership", "outcome_within"]

SOURCE_GRACE_S = 5.0
"""The source's own group time-out equals the receivers' deadline; it needs a moment more to report."""

logger = logging.getLogger(__name__)
T = TypeVar("T")


async def outcome_within(awaitable: Awaitable[T], deadline_s: float) -> Outcome[T]:
    """Await something for at most `deadline_s` seconds; a `TimeoutError` is an outcome too."""

    async def bounded() -> T:
        async with asyncio.timeout(deadline_s):
            return await awaitable

    return await outcome_of_async(bounded())


class Membership:
    """Receivers, quarantine, and the group of the moment.

    Args:
        source: The trainer's ranks.
        receivers: Servers with unique names.
        config: Group and deadlines.

    Raises:
        ValueError: No receivers, or two of one name.
    """

    def __init__(
        self, source: WeightSource, receivers: Sequence[WeightReceiver], config: PublisherConfig
    ) -> None:
        self._receivers = {receiver.name: receiver for receiver in receivers}
        if not receivers or len(self._receivers) < len(receivers):
            raise ValueError(
                f"receivers must have unique names and be at least one, got"
                f" {[receiver.name for receiver in receivers]}. Name them by URL."
            )
        self._source = source
        self._config = config
        self._num_groups = 0
        self._checked: set[str] = set()
        self._members: tuple[str, ...] = ()
        self.quarantined: dict[str, str] = {}
        self.group_name: str | None = None
        self.plan: PublishPlan | None = None

    def active(self) -> dict[str, WeightReceiver]:
        """Return the receivers that take part."""
        return {n: r for n, r in self._receivers.items() if n not in self.quarantined}

    def is_formed(self) -> bool:
        """Return whether the group consists of exactly the active receivers."""
        return self.group_name is not None and self._members == tuple(self.active())

    def quarantine(self, name: str, reason: str) -> None:
        """Leave a receiver out.

        Raises:
            KeyError: No receiver of this name.
        """
        if name not in self._receivers:
            raise KeyError(f"name must be one of {sorted(self._receivers)}, got {name!r}.")
        self.quarantined[name] = reason
        logger.warning("receiver %s is quarantined: %s", name, reason)

    def quarantine_failed(self, outcomes: Mapping[str, Outcome[T]], phase: str) -> bool:
        """Leave out every receiver whose outcome is an error; return whether there was one."""
        failed = {name: o.error for name, o in outcomes.items() if o.error is not None}
        for name, error in failed.items():
            self.quarantine(name, f"{phase}: {type(error).__name__}: {error}")
        return bool(failed)

    def readmit(self, receiver: WeightReceiver) -> None:
        """Take a receiver in, in the place of the one of its name."""
        self._receivers[receiver.name] = receiver
        self.quarantined.pop(receiver.name, None)
        self._checked.discard(receiver.name)

    async def each(
        self, calls: Mapping[str, Awaitable[T]], deadline_s: float
    ) -> dict[str, Outcome[T]]:
        """Await calls at the same time, each up to the deadline."""
        async with asyncio.TaskGroup() as group:
            tasks = {
                name: group.create_task(outcome_within(call, deadline_s))
                for name, call in calls.items()
            }
        return {name: task.result() for name, task in tasks.items()}

    async def form(self) -> bool:
        """Form a group of the active receivers.

        Returns:
            False when a receiver was lost on the way; it is in quarantine.

        Raises:
            ManifestMismatchError: A receiver holds other weights.
            PublishTimeoutError: The source doesn't answer.
            PublishError: The source failed though every receiver is well.
        """
        await self.close()
        self._num_groups += 1
        name = f"{self._config.group_prefix}-{self._num_groups}"
        # A dead receiver would keep the others waiting for it; asking first costs little.
        probes = {n: r.destroy_weights_group(name) for n, r in self.active().items()}
        if self.quarantine_failed(
            await self.each(probes, self._config.pause_deadline_s), "handshake"
        ):
            return False
        plan = await self._within(self._source.publish_plan())
        await self._check_indexes(plan)
        self.plan = plan
        return await self._join(name)

    async def close(self) -> dict[str, Outcome[None]]:
        """Leave the group on all sides; return how each receiver answered."""
        name, self.group_name, self._members = self.group_name, None, ()
        if name is None:
            return {}
        deadline_s = self._config.handshake_deadline_s
        calls = {n: r.destroy_weights_group(name) for n, r in self.active().items()}
        async with asyncio.TaskGroup() as group:
            # At the same time: with nccl nobody has left before all members leave.
            group.create_task(
                outcome_within(self._source.close_weights_group(), deadline_s + SOURCE_GRACE_S)
            )
            answers = group.create_task(self.each(calls, deadline_s))
        return answers.result()

    async def _join(self, name: str) -> bool:
        config, active = self._config, self.active()
        request = GroupRequest(
            host=config.host,
            world_size=1 + sum(receiver.num_ranks for receiver in active.values()),
            group_name=name,
            backend=config.backend,
            timeout_s=min(config.handshake_deadline_s, config.broadcast_deadline_s),
        )
        port = await self._within(self._source.bind_weights_group(request))
        calls = {
            receiver_name: active[receiver_name].init_weights_group(membership)
            for receiver_name, membership in _memberships(request, active, port).items()
        }
        self.group_name, self._members = name, tuple(active)
        async with asyncio.TaskGroup() as group:
            joining = group.create_task(
                outcome_within(
                    self._source.join_weights_group(), config.handshake_deadline_s + SOURCE_GRACE_S
                )
            )
            answers = group.create_task(self.each(calls, config.handshake_deadline_s))
        if self.quarantine_failed(answers.result(), "handshake"):
            self.quarantine_failed(await self.close(), "handshake")
            return False
        error = joining.result().error
        if error is not None:
            await self.close()
            raise error
        return True

    async def _check_indexes(self, plan: PublishPlan) -> None:
        for name, receiver in self.active().items():
            if name in self._checked or not isinstance(receiver, IndexedReceiver):
                continue
            index = await self._within(receiver.weight_index())
            if index is not None:
                check_index(plan, index, receiver=name)
            self._checked.add(name)

    async def _within(self, awaitable: Awaitable[T]) -> T:
        deadline_s = self._config.handshake_deadline_s
        try:
            async with asyncio.timeout(deadline_s):
                return await awaitable
        except TimeoutError as error:
            raise PublishTimeoutError(
                f"the handshake must be answered within {deadline_s:g} s, got no answer."
                " Look at the trainer's and the servers' logs.",
                phase="handshake",
            ) from error


def _memberships(
    request: GroupRequest, receivers: Mapping[str, WeightReceiver], port: int
) -> dict[str, GroupMembership]:
    memberships: dict[str, GroupMembership] = {}
    rank = 1
    for name, receiver in receivers.items():
        memberships[name] = GroupMembership(
            master_address=request.host,
            master_port=port,
            rank_offset=rank,
            world_size=request.world_size,
            group_name=request.group_name,
            backend=request.backend,
        )
        rank += receiver.num_ranks
    return memberships
