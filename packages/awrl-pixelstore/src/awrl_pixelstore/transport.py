"""Actor calls with a deadline: sent at once, collected in order, failures as values.

Invariants: every collection ends within its limit, whatever a shard does; a shard that died for
good is looked up once more by name, so that a re-created store is found; nothing but
`PixelStoreUnavailable` stands for a failure of Ray.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError, RayTaskError

from awrl_pixelstore.errors import PixelStoreUnavailable
from awrl_pixelstore.image import PackedImage
from awrl_pixelstore.window import Window, WindowPool, is_worth_a_window
from awrl_pixelstore.wire import (
    Call,
    Fetched,
    Outcome,
    Reply,
    Seen,
    StoreSpec,
    WindowUnreachable,
)

logger = logging.getLogger(__name__)

NAMESPACE = "awrl-pixelstore"

Pending: TypeAlias = "ray.ObjectRef[Reply] | PixelStoreUnavailable"


def actor_name(run_id: str, shard: int) -> str:
    """Return the name under which Ray knows a shard."""
    return f"{run_id}#{shard}"


class Sent(NamedTuple):
    """A call that was made."""

    pending: Pending
    """Its answer to be."""
    window: Window | None
    """Where its payload goes or comes, when not by Ray."""


class Deadline(NamedTuple):
    """When an operation must have ended."""

    at: float
    """Moment on the transport's clock."""
    limit_s: float
    """Seconds that were granted, for messages."""


class ShardTransport:
    """Calls to the shards of one store, from one process.

    Args:
        spec: What the store's creator fixed.
        node_id: Ray node of this process.
        windows: Memory shared with the shards of this node.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        spec: StoreSpec,
        node_id: str,
        windows: WindowPool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec = spec
        self._clock = clock
        self._windows = windows or WindowPool()
        self._near = {shard for shard, home in enumerate(spec.layout) if home == node_id}
        self._handles: dict[int, ActorHandle[object]] = {}

    def deadline(self, limit_s: float | None) -> Deadline:
        """Return the deadline of an operation that starts now; None takes the store's limit."""
        limit_s = self._spec.config.call_timeout_s if limit_s is None else limit_s
        return Deadline(self._clock() + limit_s, limit_s)

    def collect(
        self, calls: Sequence[Call], seen: Sequence[Seen | None], deadline: Deadline
    ) -> list[Outcome]:
        """Make calls and return their outcomes in order, before the deadline."""
        outcomes: list[Outcome] = []
        for call, sent in zip(calls, self._send(calls, seen), strict=True):
            outcome = self._wait(call, sent, deadline)
            if self._is_worth_another(call, outcome):
                outcome = self._wait(call, self._send_one(call, None), deadline)
            outcomes.append(outcome)
        return outcomes

    async def collect_async(
        self, calls: Sequence[Call], seen: Sequence[Seen | None], deadline: Deadline
    ) -> list[Outcome]:
        """Make calls and return their outcomes in order, before the deadline."""
        outcomes: list[Outcome] = []
        for call, sent in zip(calls, self._send(calls, seen), strict=True):
            outcome = await self._wait_async(call, sent, deadline)
            if self._is_worth_another(call, outcome):
                outcome = await self._wait_async(call, self._send_one(call, None), deadline)
            outcomes.append(outcome)
        return outcomes

    def kill(self, shard: int) -> None:
        """End a shard's actor for good; no error when there is none."""
        handle = self._find(shard)
        if handle is not None:
            ray.kill(handle, no_restart=True)
            self._handles.pop(shard, None)

    def _send(self, calls: Sequence[Call], seen: Sequence[Seen | None]) -> list[Sent]:
        return [self._send_one(call, known) for call, known in zip(calls, seen, strict=True)]

    def _send_one(self, call: Call, seen: Seen | None) -> Sent:
        try:
            handle = self._find(call.shard)
            if handle is None:
                reason = "no actor of this name: closed, or killed"
                return Sent(_unavailable(call, reason, None, is_gone=True), None)
            arguments, window = self._load(call, seen)
            # One argument: each further one costs Ray about 0.1 ms.
            ask: Any = getattr(handle, "ask")  # noqa: B009
            pending = cast("ray.ObjectRef[Reply]", ask.remote((call.method, arguments)))
            if window is not None and call.method == "put":
                window.sign(cast("Sequence[PackedImage]", call.arguments[0]))
            return Sent(pending, window)
        except RayError as error:
            return Sent(_unavailable(call, f"{type(error).__name__} at submission", None), None)

    def _load(self, call: Call, seen: Seen | None) -> tuple[tuple[object, ...], Window | None]:
        """Return the arguments of a call, with its payload in a window where that is better."""
        arguments = (*call.arguments, seen)
        if call.shard not in self._near or call.method not in ("put", "fetch"):
            return arguments, None
        if call.method == "fetch":
            window = self._windows.take()
            return (*arguments, window and window.address), window
        images, *rest = arguments
        batch = cast("Sequence[PackedImage]", images)
        if not is_worth_a_window([image.payload.nbytes for image in batch]):
            return arguments, None
        window = self._windows.take()
        if window is None:
            return arguments, None
        try:
            return (window.load(batch), *rest), window
        except OSError:
            window.close()
            return arguments, None

    def _unload(self, reply: Reply, window: Window | None) -> Reply:
        """Return an answer with its payload; the window is free for another call then."""
        if window is None:
            return reply
        if isinstance(reply.value, Fetched):
            reply = reply._replace(value=window.unload(reply.value))
        self._windows.give_back(window)
        return reply

    def _find(self, shard: int) -> "ActorHandle[object] | None":
        if not ray.is_initialized():
            # Ray would start a cluster by itself: a late close() must not.
            self._handles.clear()
            return None
        handle = self._handles.get(shard)
        if handle is None:
            try:
                name = actor_name(self._spec.run_id, shard)
                handle = cast("ActorHandle[object]", ray.get_actor(name, namespace=NAMESPACE))
            except ValueError:
                return None
            self._handles[shard] = handle
        return handle

    def _is_worth_another(self, call: Call, outcome: Outcome) -> bool:
        if isinstance(outcome, PixelStoreUnavailable):
            return outcome.is_gone and self._handles.pop(call.shard, None) is not None
        if isinstance(outcome.value, WindowUnreachable):
            logger.info("shard %d is not near, Ray carries: %s", call.shard, outcome.value.reason)
            self._near.discard(call.shard)
            return True
        return False

    def _wait(self, call: Call, sent: Sent, deadline: Deadline) -> Outcome:
        pending, window = sent
        if isinstance(pending, PixelStoreUnavailable):
            return pending
        try:
            reply = ray.get(pending, timeout=max(deadline.at - self._clock(), 0.0))
            return self._unload(reply, window)
        except GetTimeoutError:
            ray.cancel(pending)
            return _unavailable(call, "no answer", deadline.limit_s)
        except RayTaskError:
            raise
        except RayError as error:
            return _failed(call, error, deadline.limit_s)

    async def _wait_async(self, call: Call, sent: Sent, deadline: Deadline) -> Outcome:
        pending, window = sent
        if isinstance(pending, PixelStoreUnavailable):
            return pending
        try:
            async with asyncio.timeout(max(deadline.at - self._clock(), 0.0)):
                reply = await pending
            return self._unload(reply, window)
        except TimeoutError:
            ray.cancel(pending)
            return _unavailable(call, "no answer", deadline.limit_s)
        except RayTaskError:
            raise
        except RayError as error:
            return _failed(call, error, deadline.limit_s)


def _unavailable(
    call: Call, reason: str, limit_s: float | None, *, is_gone: bool = False
) -> PixelStoreUnavailable:
    return PixelStoreUnavailable(
        reason, shard=call.shard, keys=call.keys, limit_s=limit_s, is_gone=is_gone
    )


def _failed(call: Call, error: RayError, limit_s: float) -> PixelStoreUnavailable:
    is_gone = isinstance(error, ActorDiedError)
    failure = _unavailable(call, type(error).__name__, limit_s, is_gone=is_gone)
    failure.__cause__ = error
    return failure
