"""The two ways on which a publish brings weights to paused receivers: broadcast and snapshot.

Invariants:

* A process group consists of all receivers that are not in quarantine; its name is never used twice.
* One receiver's fault never puts another in quarantine while the other still answers.
* Losing a receiver costs its process group only: the next attempt forms one of those that are left.
* A snapshot is written once for a version, while receivers still generate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from awrl_trainer.errors import PublishError
from awrl_trainer.outcome import CallOutcome
from awrl_trainer.weights.config import PublisherConfig
from awrl_trainer.weights.plan import Bucket
from awrl_trainer.weights.protocols import GroupMembership, WeightReceiver, WeightSource
from awrl_trainer.weights.receivers import Receivers, both, each, outcome_within
from awrl_trainer.weights.sender import BucketTiming, GroupRequest, WeightSender
from awrl_trainer.weights.snapshot import SnapshotWriter

SOURCE_GRACE_S = 5.0
"""The source's own group time-out equals the receivers' deadline; it needs a moment more to report."""

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, kw_only=True, slots=True)
class SentWeights:
    """What receivers are verified by."""

    checksums: Mapping[str, str]
    """By name; empty when no receiver gives checksums by name."""
    fingerprint: str | None
    """Of all; None when no receiver needs it."""
    error: Exception | None
    """Why the trainer gave none."""


@dataclass(kw_only=True, slots=True)
class Window:
    """What one publish has done so far."""

    started: float | None = None
    """When the first receiver was asked to pause."""
    paused: set[str] = field(default_factory=set[str])
    """Receivers that were asked to pause."""
    partially_updated: set[str] = field(default_factory=set[str])
    """Receivers that may hold a part of an update and not its end."""
    num_attempts: int = 0
    sent: SentWeights | None = None
    """What the trainer sends, once it was asked."""
    handshake_s: float = 0.0
    pause_s: float = 0.0
    gather_s: float = 0.0
    broadcast_s: float = 0.0
    switch_s: float = 0.0
    verify_s: float = 0.0


class Delivery(Protocol):
    """One way to bring weights to receivers."""

    async def prepare(self, version: int, window: Window) -> bool:
        """Do what needs no pause; False when a receiver was lost on the way."""
        ...

    async def deliver(self, version: int, window: Window) -> bool:
        """Bring the weights to every active, paused receiver; False when it must be done again."""
        ...

    async def close(self) -> None:
        """Leave what `prepare` has joined; a receiver comes or goes."""
        ...


async def answer_within(
    awaitable: Awaitable[ResultT], deadline_s: float, *, phase: str, what: str
) -> ResultT:
    """Return the trainer's answer.

    Args:
        phase: Part of the publish, for the error.
        what: What must be answered, for the error.

    Raises:
        PublishError: No answer in time.
    """
    try:
        async with asyncio.timeout(deadline_s):
            return await awaitable
    except TimeoutError as error:
        raise PublishError(
            f"{what} must be answered within {deadline_s:g} s, got no answer from the trainer."
            " Look at the logs of its ranks.",
            phase=phase,
        ) from error


class Broadcast:
    """Delivers flattened buckets through one process group of rank 0 and the receivers."""

    def __init__(
        self,
        source: WeightSource,
        receivers: Receivers,
        config: PublisherConfig,
        clock: Callable[[], float],
    ) -> None:
        self._source = source
        self._receivers = receivers
        self._config = config
        self._clock = clock
        self._num_groups = 0
        self._group_name: str | None = None
        self._members: tuple[str, ...] = ()
        self._buckets: tuple[Bucket, ...] = ()

    async def prepare(self, version: int, window: Window) -> bool:
        """Form a group of the active receivers, unless there is one.

        Raises:
            PublishError: The source fails though every receiver is well.
        """
        active = self._receivers.active()
        if self._group_name is not None and self._members == tuple(active):
            return True
        await self.close()
        self._num_groups += 1
        name = f"{self._config.group_prefix}-{self._num_groups}"
        # A dead receiver would keep the others waiting for it; asking first costs little.
        probes = {n: r.destroy_weights_group(name) for n, r in active.items()}
        answers = await each(probes, self._config.pause_deadline_s)
        if self._receivers.quarantine_failed(answers, "handshake"):
            return False
        self._buckets = (await self._ask(self._source.send(WeightSender.publish_plan))).buckets
        return await self._join(name, active)

    async def deliver(self, version: int, window: Window) -> bool:
        """Broadcast every bucket; the version switches with the last one.

        Raises:
            PublishError: The source fails though every receiver is well.
        """
        for bucket in self._buckets:
            is_last = bucket.index == len(self._buckets) - 1
            if not await self._send(bucket, version if is_last else None, window):
                return False
        window.partially_updated.clear()
        return True

    async def close(self) -> None:
        """Leave the group on all sides; a receiver that can't is dead, and goes into quarantine."""
        name, self._group_name, self._members = self._group_name, None, ()
        if name is None:
            return
        deadline_s = self._config.handshake_deadline_s
        calls = {n: r.destroy_weights_group(name) for n, r in self._receivers.active().items()}
        leaving = self._source.send(WeightSender.close_group)
        # At the same time: with nccl nobody has left before all members leave.
        _, answers = await both(
            outcome_within(leaving, deadline_s + SOURCE_GRACE_S), each(calls, deadline_s)
        )
        self._receivers.quarantine_failed(answers, "leaving the group")

    async def _join(self, name: str, active: Mapping[str, WeightReceiver]) -> bool:
        config = self._config
        request = GroupRequest(
            host=config.host,
            world_size=1 + sum(receiver.num_ranks for receiver in active.values()),
            group_name=name,
            backend=config.backend,
            timeout_s=min(config.handshake_deadline_s, config.broadcast_deadline_s),
        )
        port = await self._ask(self._source.send(WeightSender.bind_group, request))
        calls: dict[str, Awaitable[None]] = {}
        rank = 1
        for receiver_name, receiver in active.items():
            membership = GroupMembership(
                master_address=request.host,
                master_port=port,
                rank_offset=rank,
                world_size=request.world_size,
                group_name=name,
                backend=request.backend,
            )
            calls[receiver_name] = receiver.init_weights_group(membership)
            rank += receiver.num_ranks
        self._group_name, self._members = name, tuple(active)
        deadline_s = config.handshake_deadline_s
        joining = self._source.send(WeightSender.join_group)
        joined, answers = await both(
            outcome_within(joining, deadline_s + SOURCE_GRACE_S), each(calls, deadline_s)
        )
        if self._receivers.quarantine_failed(answers, "handshake"):
            await self.close()
            return False
        if joined.error is not None:
            await self.close()
            raise joined.error
        return True

    async def _ask(self, awaitable: Awaitable[ResultT]) -> ResultT:
        return await answer_within(
            awaitable,
            self._config.handshake_deadline_s,
            phase="handshake",
            what="the handshake",
        )

    async def _send(self, bucket: Bucket, version: int | None, window: Window) -> bool:
        """Broadcast one bucket while every receiver receives it; False when one is lost."""
        assert self._group_name is not None
        active = self._receivers.active()
        window.partially_updated |= set(active)
        calls = {
            name: receiver.update_weights_from_distributed(
                bucket, group_name=self._group_name, weight_version=version
            )
            for name, receiver in active.items()
        }
        started = self._clock()
        sent, outcomes = await both(
            self._broadcast(bucket), each(calls, self._config.broadcast_deadline_s)
        )
        elapsed = self._clock() - started
        if sent.value is not None:
            window.gather_s += sent.value.gather_s
            window.broadcast_s += sent.value.broadcast_s
            window.switch_s += max(0.0, elapsed - sent.value.gather_s - sent.value.broadcast_s)
        if sent.error is None and not any(outcome.error for outcome in outcomes.values()):
            return True
        await self._attribute_failure(sent.error, outcomes)
        return False

    async def _broadcast(self, bucket: Bucket) -> CallOutcome[BucketTiming]:
        outcome = await outcome_within(
            self._source.send(WeightSender.broadcast_bucket, bucket.index),
            self._config.broadcast_deadline_s + SOURCE_GRACE_S,
        )
        if outcome.error is not None:
            # Leaving the group closes its connections, which frees receivers that wait for data.
            await outcome_within(
                self._source.send(WeightSender.close_group), self._config.handshake_deadline_s
            )
        return outcome

    async def _attribute_failure(
        self, source_error: Exception | None, outcomes: Mapping[str, CallOutcome[None]]
    ) -> None:
        """Quarantine those who caused a failed broadcast; those who still answer stay.

        In a broken collective the innocent fail too. Whoever never answered is stuck in it, whoever
        can't leave the group is dead, and whoever fails though the source succeeded is broken.

        Raises:
            PublishError: The source never answered, or failed though every receiver is well.
        """
        if isinstance(source_error, TimeoutError):
            raise PublishError(
                f"a bucket must leave the trainer within {self._config.broadcast_deadline_s:g} s,"
                " got no answer from its ranks. Restart the trainer.",
                phase="broadcast",
            ) from source_error
        if source_error is not None and not any(o.error for o in outcomes.values()):
            raise PublishError(
                f"the trainer must broadcast every bucket, got {source_error!r}.", phase="broadcast"
            ) from source_error
        if source_error is not None:
            outcomes = {n: o for n, o in outcomes.items() if isinstance(o.error, TimeoutError)}
        self._receivers.quarantine_failed(outcomes, "broadcast")
        await self.close()


class SharedFolder:
    """Delivers through a snapshot in a folder that trainer and receivers share."""

    def __init__(
        self,
        source: WeightSource,
        receivers: Receivers,
        config: PublisherConfig,
        clock: Callable[[], float],
    ) -> None:
        assert config.snapshots is not None
        self._source = source
        self._receivers = receivers
        self._writer: SnapshotWriter = config.snapshots
        self._deadline_s = config.snapshot_deadline_s
        self._clock = clock
        self._written: tuple[Window, Path] | None = None

    async def prepare(self, version: int, window: Window) -> bool:
        """Write the snapshot of this publish, once.

        Raises:
            PublishError: The ranks did not answer.
            CheckpointError: The disk refused a write.
        """
        if self._written is not None and self._written[0] is window:
            return True
        started = self._clock()
        writing = self._source.send(WeightSender.write_snapshot, self._writer, version)
        path = await answer_within(
            writing, self._deadline_s, phase="snapshot", what="writing a snapshot"
        )
        assert path is not None
        self._written = window, path
        window.gather_s += self._clock() - started
        return True

    async def deliver(self, version: int, window: Window) -> bool:
        """Let every receiver load the snapshot; those that don't are left out of this publish."""
        assert self._written is not None
        path = str(self._written[1].absolute())
        active = self._receivers.active()
        window.partially_updated |= set(active)
        started = self._clock()
        calls = {
            name: receiver.update_weights_from_disk(path, weight_version=version)
            for name, receiver in active.items()
        }
        outcomes = await each(calls, self._deadline_s)
        window.switch_s += self._clock() - started
        self._receivers.quarantine_failed(outcomes, "load")
        window.partially_updated -= set(self._receivers.active())
        return bool(self._receivers.active())

    async def close(self) -> None:
        """Do nothing: nobody holds anything in common."""
