"""Publishing over a process group, driven from the controller.

Invariants:

* One publish runs at a time: handshake -> pause -> broadcast -> switch (with the last bucket) ->
  resume -> verify. Only pause to resume is serialized with generation.
* Every wait has a deadline in seconds; nothing here can hang.
* No rank gathers before all receivers are paused.
* A receiver never generates from a mixture: one that got a part of an update and not its end stays
  paused, in quarantine, until `rejoin`.
* Losing a receiver costs its group only: a new one is formed of those that are left, and the whole
  update is sent again in the same window.

Called by the controller's step loop. Consumes the source's buckets; produces reports; waits for the
slowest receiver of each part, up to the deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from awrl_trainer.boundary import Outcome
from awrl_trainer.errors import PublishError
from awrl_trainer.weights.judgement import find_lost, quarantine_corrupt
from awrl_trainer.weights.manifest import Bucket
from awrl_trainer.weights.membership import SOURCE_GRACE_S, Membership, outcome_within
from awrl_trainer.weights.protocols import BucketTiming, WeightReceiver, WeightSource
from awrl_trainer.weights.report import PublisherConfig, PublishReport
from awrl_trainer.weights.window import WindowEvent, WindowState, next_state

__all__ = ["XcclPublisher"]

MAX_ATTEMPTS = 4
"""Groups formed in one publish before it gives up: a flapping network must not loop for ever."""


@dataclass(kw_only=True, slots=True)
class _Window:
    """Sums of one publish."""

    started: float | None = None
    paused: set[str] = field(default_factory=set[str])
    torn: set[str] = field(default_factory=set[str])
    num_attempts: int = 0
    handshake_s: float = 0.0
    pause_s: float = 0.0
    gather_s: float = 0.0
    broadcast_s: float = 0.0
    switch_s: float = 0.0


class XcclPublisher:
    """Publishes weights from a source to receivers through one process group.

    Args:
        source: The trainer's ranks.
        receivers: Servers with unique names.
        config: Group and deadlines.
        clock: Seconds, for the report.

    Raises:
        ValueError: No receivers, or two of one name.
    """

    def __init__(
        self,
        source: WeightSource,
        receivers: Sequence[WeightReceiver],
        config: PublisherConfig | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._source = source
        self._config = config or PublisherConfig()
        self._members = Membership(source, receivers, self._config)
        self._clock = clock
        self._state = WindowState.IDLE

    @property
    def state(self) -> WindowState:
        """Where the publish in progress is, or how the last one ended."""
        return self._state

    @property
    def quarantined(self) -> Mapping[str, str]:
        """Receivers that don't take part, with the reason."""
        return dict(self._members.quarantined)

    async def connect(self) -> None:
        """Check every receiver's weight index and form the group, before the first publish.

        Raises:
            ManifestMismatchError: A receiver holds other weights; nothing was sent.
            PublishError: No receiver could join.
        """
        window = _Window()
        self._state = WindowState.HANDSHAKE
        while not self._members.is_formed():
            self._count_attempt(window)
            await self._members.form()
        self._state = WindowState.IDLE

    async def publish(self, version: int) -> PublishReport:
        """Bring every receiver to the source's weights, as this version.

        Args:
            version: Version that the receivers report afterwards.

        Returns:
            The window's parts, and who is quarantined.

        Raises:
            ManifestMismatchError: A receiver holds other weights; nothing was sent.
            PublishError: No receiver holds the version; those that were not touched generate again
                from their previous weights.
        """
        self._state = WindowState.IDLE
        self._advance(WindowEvent.STARTED)
        window = _Window()
        is_published = False
        try:
            while not is_published:
                self._count_attempt(window)
                is_published = await self._attempt(version, window)
        finally:
            resuming = self._clock()
            await self._resume(window)
            ended = self._clock()
        self._advance(WindowEvent.RESUMED)
        await quarantine_corrupt(self._members, self._source, version, self._config)
        self._advance(WindowEvent.VERIFIED)
        plan = self._members.plan
        return PublishReport(
            version=version,
            receivers=tuple(self._members.active()),
            quarantined=self.quarantined,
            num_bytes=plan.num_bytes if plan else 0,
            handshake_s=window.handshake_s,
            pause_s=window.pause_s,
            gather_s=window.gather_s,
            broadcast_s=window.broadcast_s,
            switch_s=window.switch_s,
            resume_s=ended - resuming,
            window_s=ended - (window.started if window.started is not None else ended),
            verify_s=self._clock() - ended,
        )

    def quarantine(self, name: str, reason: str) -> None:
        """Leave a receiver out of the next publishes; the group is formed anew without it.

        Raises:
            KeyError: No receiver of this name.
        """
        self._members.quarantine(name, reason)

    async def rejoin(self, receiver: WeightReceiver) -> None:
        """Take a receiver in again, restarted or new; the next publish forms a group with it.

        It is paused until that publish has given it the newest weights.

        Args:
            receiver: Replaces the one of the same name.

        Raises:
            PublishError: It can't be paused.
        """
        outcome = await outcome_within(receiver.pause_generation(), self._config.pause_deadline_s)
        if outcome.error is not None:
            raise PublishError(
                f"receiver {receiver.name!r} must pause before it joins, got {outcome.error!r}."
                " Wait until it is healthy.",
                phase="pause",
                receivers=(receiver.name,),
            ) from outcome.error
        await self._members.close()
        self._members.readmit(receiver)

    async def aclose(self) -> None:
        """Leave the group; receivers go on generating."""
        await self._members.close()

    def _advance(self, event: WindowEvent) -> None:
        self._state = next_state(self._state, event)

    def _count_attempt(self, window: _Window) -> None:
        """Start another attempt, or give up when nobody is left or too many have failed."""
        window.num_attempts += 1
        quarantined = self._members.quarantined
        if self._members.active() and window.num_attempts <= MAX_ATTEMPTS:
            return
        phase = self._state.value
        self._advance(WindowEvent.NOBODY_LEFT)
        raise PublishError(
            f"at least one receiver must take the new version within {MAX_ATTEMPTS} attempts, got"
            f" none; in quarantine: {quarantined}. Restart the servers and rejoin them.",
            phase=phase,
            receivers=tuple(quarantined),
        )

    async def _attempt(self, version: int, window: _Window) -> bool:
        """Handshake, pause and broadcast with the active receivers; False when one is lost."""
        started = self._clock()
        if not self._members.is_formed() and not await self._members.form():
            self._advance(WindowEvent.RECEIVER_LOST)
            return False
        window.handshake_s += self._clock() - started
        self._advance(WindowEvent.GROUP_FORMED)
        if not await self._pause(window):
            return False
        self._advance(WindowEvent.ALL_PAUSED)
        assert self._members.plan is not None
        buckets = self._members.plan.buckets
        for bucket in buckets:
            is_last = bucket.index == len(buckets) - 1
            if not await self._send(bucket, version if is_last else None, window):
                self._advance(WindowEvent.RECEIVER_LOST)
                return False
        window.torn.clear()
        self._advance(WindowEvent.SWITCHED)
        return True

    async def _pause(self, window: _Window) -> bool:
        started = self._clock()
        window.started = started if window.started is None else window.started
        active = self._members.active()
        # Before the calls: when this is cancelled, who was asked to pause must be asked to go on.
        window.paused |= set(active)
        outcomes = await self._members.each(
            {name: receiver.pause_generation() for name, receiver in active.items()},
            self._config.pause_deadline_s,
        )
        window.pause_s += self._clock() - started
        if self._members.quarantine_failed(outcomes, "pause"):
            self._advance(WindowEvent.RECEIVER_LOST)
            return False
        return True

    async def _send(self, bucket: Bucket, version: int | None, window: _Window) -> bool:
        """Broadcast one bucket while every receiver receives it; False when one is lost."""
        group_name = self._members.group_name
        assert group_name is not None
        active = self._members.active()
        window.torn |= set(active)
        calls = {
            name: receiver.update_weights_from_distributed(
                bucket, group_name=group_name, weight_version=version
            )
            for name, receiver in active.items()
        }
        started = self._clock()
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(self._broadcast(bucket))
            answers = group.create_task(
                self._members.each(calls, self._config.broadcast_deadline_s)
            )
        elapsed = self._clock() - started
        sent, outcomes = sending.result(), answers.result()
        if sent.value is not None:
            window.gather_s += sent.value.gather_s
            window.broadcast_s += sent.value.broadcast_s
            window.switch_s += max(0.0, elapsed - sent.value.gather_s - sent.value.broadcast_s)
        if sent.error is None and not any(outcome.error for outcome in outcomes.values()):
            return True
        await find_lost(
            self._members, outcomes, sent.error, deadline_s=self._config.broadcast_deadline_s
        )
        return False

    async def _broadcast(self, bucket: Bucket) -> Outcome[BucketTiming]:
        outcome = await outcome_within(
            self._source.broadcast_bucket(bucket.index),
            self._config.broadcast_deadline_s + SOURCE_GRACE_S,
        )
        if outcome.error is not None:
            # Leaving the group closes its connections, which frees receivers that wait for data.
            await outcome_within(
                self._source.close_weights_group(), self._config.handshake_deadline_s
            )
        return outcome

    async def _resume(self, window: _Window) -> None:
        """Let receivers generate again, but those that hold a part of an update only."""
        for name in sorted(window.torn & set(self._members.active())):
            self._members.quarantine(name, "holds a part of an update")
        active = self._members.active()
        outcomes = await self._members.each(
            {name: r.continue_generation() for name, r in active.items() if name in window.paused},
            self._config.resume_deadline_s,
        )
        self._members.quarantine_failed(outcomes, "resume")
