"""Publishing weights to inference servers, driven from the controller.

Invariants:

* One publish runs at a time: prepare -> pause -> deliver (the version switches at its end) -> verify
  -> resume. Only pause to resume is serialized with generation.
* Every wait has a deadline in seconds; nothing here can hang.
* No rank gathers a bucket before all receivers are paused.
* A receiver never generates from a mixture: one that got a part of an update and not its end stays
  paused, in quarantine, until `rejoin`. So does one whose weights are found to be others than those
  that were sent, before it generates anything under the new version.
* When a receiver is lost the others get the whole update in the same window.

Called by the controller's step loop. Consumes what the ranks send; produces reports; waits for the
slowest receiver of each part, up to the deadline.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence

from awrl_trainer.errors import PublishError
from awrl_trainer.outcome import CallOutcome
from awrl_trainer.weights.config import PublisherConfig, PublishReport
from awrl_trainer.weights.delivery import (
    Broadcast,
    Delivery,
    SentWeights,
    SharedFolder,
    Window,
    answer_within,
)
from awrl_trainer.weights.plan import PublishPlan, TensorSpec
from awrl_trainer.weights.protocols import WHOLE, WeightReceiver, WeightSource
from awrl_trainer.weights.receivers import Receivers, each, outcome_within
from awrl_trainer.weights.sender import WeightSender

MAX_ATTEMPTS = 4
"""Attempts of one publish before it gives up: a flapping network must not loop for ever."""

logger = logging.getLogger(__name__)


class WeightPublisher:
    """Publishes weights from a source to receivers.

    Args:
        receivers: Servers with unique names.
        config: Broadcast or snapshot, and deadlines.

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
        self._receivers = Receivers(receivers)
        self._clock = clock
        way = Broadcast if self._config.snapshots is None else SharedFolder
        self._delivery: Delivery = way(source, self._receivers, self._config, clock)
        self._plan: PublishPlan | None = None
        self._checked: set[str] = set()
        self._speakers: dict[str, Mapping[str, str]] = {}
        """Receivers that give checksums, with what they said when they joined."""
        self._known: dict[str, str] = {}
        """The trainer's fingerprint that a receiver's checksum of everything stands for."""

    @property
    def quarantined(self) -> Mapping[str, str]:
        """Receivers that don't take part, with the reason."""
        return dict(self._receivers.quarantined)

    async def connect(self) -> None:
        """Check every receiver's weight index, and form the group of a broadcast.

        Raises:
            PublishError: A receiver holds other weights, or none could join; nothing was sent.
        """
        window = Window()
        is_ready = False
        while not is_ready:
            self._count_attempt(window)
            is_ready = await self._check_indexes()
            if is_ready and isinstance(self._delivery, Broadcast):
                is_ready = await self._delivery.prepare(0, window)
        sent = await self._ask_for_sent(0)
        if sent.fingerprint is not None:
            wholes = [said[WHOLE] for said in self._speakers.values() if WHOLE in said]
            self._known |= dict.fromkeys(wholes, sent.fingerprint)

    async def publish(self, version: int) -> PublishReport:
        """Bring every receiver to the source's weights, as this version.

        Args:
            version: Version that the receivers report afterwards.

        Returns:
            The window's parts, and who is quarantined.

        Raises:
            PublishError: A receiver holds other weights than the trainer (nothing was sent then), or
                no receiver holds the version. Those that were not touched generate again from their
                previous weights.
            CheckpointError: The disk refused a snapshot; nothing was sent.
        """
        window = Window()
        is_published = False
        try:
            while not is_published:
                self._count_attempt(window)
                is_published = await self._attempt(version, window)
            await self._verify(version, window)
        finally:
            resuming = self._clock()
            await self._resume(window)
            ended = self._clock()
        assert self._plan is not None
        assert window.sent is not None
        return PublishReport(
            version=version,
            receivers=tuple(self._receivers.active()),
            quarantined=self.quarantined,
            num_bytes=self._plan.num_bytes,
            handshake_s=window.handshake_s,
            pause_s=window.pause_s,
            gather_s=window.gather_s,
            broadcast_s=window.broadcast_s,
            switch_s=window.switch_s,
            resume_s=ended - resuming,
            window_s=ended - (window.started if window.started is not None else ended),
            verify_s=window.verify_s,
            unverified=None if window.sent.error is None else repr(window.sent.error),
        )

    async def rejoin(self, receiver: WeightReceiver) -> None:
        """Take a receiver in again, restarted or new; it is paused until the next publish.

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
        await self._delivery.close()
        self._receivers.readmit(receiver)
        self._checked.discard(receiver.name)
        self._speakers.pop(receiver.name, None)

    async def aclose(self) -> None:
        """Leave the group; receivers go on generating."""
        await self._delivery.close()

    def _count_attempt(self, window: Window) -> None:
        """Start another attempt, or give up when nobody is left or too many have failed."""
        window.num_attempts += 1
        quarantined = self._receivers.quarantined
        if self._receivers.active() and window.num_attempts <= MAX_ATTEMPTS:
            return
        raise PublishError(
            f"at least one receiver must take the new version within {MAX_ATTEMPTS} attempts, got"
            f" none; in quarantine: {quarantined}. Restart the servers and rejoin them.",
            phase="pause" if window.started is None else "deliver",
            receivers=tuple(quarantined),
        )

    async def _attempt(self, version: int, window: Window) -> bool:
        """Prepare, pause and deliver with the active receivers; False when one is lost."""
        started = self._clock()
        if not await self._check_indexes() or not await self._delivery.prepare(version, window):
            return False
        if self._config.snapshots is None:
            window.handshake_s += self._clock() - started
        if window.sent is None:
            window.sent = await self._ask_for_sent(version)
        return await self._pause(window) and await self._delivery.deliver(version, window)

    async def _check_indexes(self) -> bool:
        """Compare what would be sent with what each new receiver holds; False when one is lost.

        Raises:
            PublishError: A receiver holds other weights; nothing was sent.
        """
        deadline_s = self._config.handshake_deadline_s
        if self._plan is None:
            self._plan = await answer_within(
                self._source.send(WeightSender.publish_plan),
                deadline_s,
                phase="handshake",
                what="the handshake",
            )
        unchecked = {n: r for n, r in self._receivers.active().items() if n not in self._checked}
        outcomes = await each({n: r.weight_index() for n, r in unchecked.items()}, deadline_s)
        said = await each({n: r.weight_checksums([]) for n, r in unchecked.items()}, deadline_s)
        self._speakers |= {n: o.value for n, o in said.items() if o.value is not None}
        if self._receivers.quarantine_failed(outcomes, "handshake"):
            return False
        for name, outcome in outcomes.items():
            if outcome.value is not None:
                _require_same_weights(self._plan, outcome.value, receiver=name)
        self._checked |= outcomes.keys()
        return True

    async def _pause(self, window: Window) -> bool:
        started = self._clock()
        window.started = started if window.started is None else window.started
        active = self._receivers.active()
        # Before the calls: when this is cancelled, who was asked to pause must be asked to go on.
        window.paused |= set(active)
        outcomes = await each(
            {name: receiver.pause_generation() for name, receiver in active.items()},
            self._config.pause_deadline_s,
        )
        window.pause_s += self._clock() - started
        return not self._receivers.quarantine_failed(outcomes, "pause")

    async def _resume(self, window: Window) -> None:
        """Let receivers generate again, but those that hold a part of an update only."""
        for name in sorted(window.partially_updated & set(self._receivers.active())):
            self._receivers.quarantine(name, "holds a part of an update")
        active = self._receivers.active()
        outcomes = await each(
            {name: r.continue_generation() for name, r in active.items() if name in window.paused},
            self._config.resume_deadline_s,
        )
        self._receivers.quarantine_failed(outcomes, "resume")

    def _verified_names(self, version: int) -> list[str]:
        """Return the weights that this publish is verified by; the version seeds a sample."""
        assert self._plan is not None
        names = [spec.name for spec in self._plan.specs]
        count = self._config.num_verified_tensors
        if count is None or count >= len(names):
            return names
        return random.Random(version).sample(names, count)

    async def _ask_for_sent(self, version: int) -> SentWeights:
        """Ask the trainer for what receivers are verified by; those generate meanwhile."""
        names, deadline_s = self._verified_names(version), self._config.broadcast_deadline_s
        active = self._receivers.active()
        said = [each for name, each in self._speakers.items() if name in active and names]
        by_name: CallOutcome[dict[str, str]] = CallOutcome(value={})
        whole: CallOutcome[str] = CallOutcome()
        if any(WHOLE not in each for each in said):
            asked = self._source.send(WeightSender.checksums, names)
            by_name = await outcome_within(asked, deadline_s)
        if any(WHOLE in each for each in said):
            whole = await outcome_within(self._source.send(WeightSender.fingerprint), deadline_s)
        error = by_name.error or whole.error
        if error is not None:
            logger.warning("version %d will not be verified: %r", version, error)
        return SentWeights(checksums=by_name.value or {}, fingerprint=whole.value, error=error)

    async def _verify(self, version: int, window: Window) -> None:
        """Compare what receivers hold with what was sent; one that differs is quarantined."""
        assert window.sent is not None
        started, sent = self._clock(), window.sent
        names = self._verified_names(version)
        asked = {n: r for n, r in self._receivers.active().items() if n in self._speakers}
        if not names or not asked:
            return
        calls = {n: r.weight_checksums(names) for n, r in asked.items()}
        outcomes = await each(calls, self._config.broadcast_deadline_s)
        self._receivers.quarantine_failed(outcomes, "verify")
        for name, outcome in outcomes.items():
            if outcome.value is not None:
                self._compare(name, outcome.value, sent)
        window.verify_s += self._clock() - started

    def _compare(self, name: str, held: Mapping[str, str], sent: SentWeights) -> None:
        """Quarantine a receiver that holds other weights than those that were sent."""
        if WHOLE in held:
            mine = sent.fingerprint
            if mine is not None and self._known.setdefault(held[WHOLE], mine) != mine:
                self._receivers.quarantine(name, "verify: the update has changed nothing")
            return
        wrong = [weight for weight, one in sent.checksums.items() if held.get(weight) != one]
        if wrong:
            more = f" and {len(wrong) - 8} more" if len(wrong) > 8 else ""
            self._receivers.quarantine(name, f"verify: other bytes of {wrong[:8]}{more}")


def _require_same_weights(plan: PublishPlan, index: Sequence[TensorSpec], *, receiver: str) -> None:
    sent = {spec.name: spec for spec in plan.specs}
    held = {spec.name: spec for spec in index}
    unknown = [name for name in sent if name not in held]
    missing = [name for name in held if name not in sent]
    different = [
        f"{name}: {spec.dtype} {list(spec.shape)}, {held[name].dtype} {list(held[name].shape)}"
        for name, spec in sent.items()
        if name in held and held[name] != spec
    ]
    if unknown or missing or different:
        raise PublishError(
            f"weights of receiver {receiver!r} must be those of the trainer, got"
            f" unknown to the receiver: {_shorten(unknown)}; not sent: {_shorten(missing)};"
            f" other dtype or shape: {_shorten(different)}. Start the server from the trainer's base"
            " checkpoint, or pass a rename function to the actor.",
            phase="handshake",
            receivers=(receiver,),
        )


def _shorten(names: Sequence[str], limit: int = 8) -> str:
    """Return at most `limit` of the names as text, and how many more there are."""
    if not names:
        return "none"
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(repr(name) for name in names[:limit]) + more
