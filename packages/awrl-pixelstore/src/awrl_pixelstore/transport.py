"""Actor calls with a deadline: sent at once, collected in order, failures as values.

Invariants: every collection ends within its limit, whatever a shard does; a shard that died for
good is looked up once more by name, so that a re-created store is found; nothing but
`PixelStoreUnavailable` stands for a failure of Ray.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, cast

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError, RayTaskError

from awrl_pixelstore.errors import PixelStoreUnavailable
from awrl_pixelstore.wire import Call, Outcome, Reply, Seen, StoreSpec

NAMESPACE = "awrl-pixelstore"

Pending: TypeAlias = "ray.ObjectRef[Reply] | PixelStoreUnavailable"


def actor_name(run_id: str, shard: int) -> str:
    """Return the name under which Ray knows a shard."""
    return f"{run_id}#{shard}"


class Deadline(NamedTuple):
    """When an operation must have ended."""

    at: float
    """Moment on the transport's clock."""
    limit_s: float
    """Seconds that were granted, for messages."""


class ShardTransport:
    """Calls to the shards of one store, from one process."""

    def __init__(self, spec: StoreSpec, clock: Callable[[], float] = time.monotonic) -> None:
        self._spec = spec
        self._clock = clock
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
        for index, pending in enumerate(self._send(calls, seen)):
            outcome = self._wait(calls[index], pending, deadline)
            if isinstance(outcome, PixelStoreUnavailable) and self._is_worth_another(outcome):
                again = self._send([calls[index]], [None])[0]
                outcome = self._wait(calls[index], again, deadline)
            outcomes.append(outcome)
        return outcomes

    async def collect_async(
        self, calls: Sequence[Call], seen: Sequence[Seen | None], deadline: Deadline
    ) -> list[Outcome]:
        """Make calls and return their outcomes in order, before the deadline."""
        outcomes: list[Outcome] = []
        for index, pending in enumerate(self._send(calls, seen)):
            outcome = await self._wait_async(calls[index], pending, deadline)
            if isinstance(outcome, PixelStoreUnavailable) and self._is_worth_another(outcome):
                again = self._send([calls[index]], [None])[0]
                outcome = await self._wait_async(calls[index], again, deadline)
            outcomes.append(outcome)
        return outcomes

    def kill(self, shard: int) -> None:
        """End a shard's actor for good; no error when there is none."""
        handle = self._find(shard)
        if handle is not None:
            ray.kill(handle, no_restart=True)
            self._handles.pop(shard, None)

    def _send(self, calls: Sequence[Call], seen: Sequence[Seen | None]) -> list[Pending]:
        return [self._send_one(call, known) for call, known in zip(calls, seen, strict=True)]

    def _send_one(self, call: Call, seen: Seen | None) -> Pending:
        try:
            handle = self._find(call.shard)
            if handle is None:
                return _unavailable(
                    call, "no actor of this name: closed, or killed", None, is_gone=True
                )
            method = getattr(handle, call.method)
            return cast("ray.ObjectRef[Reply]", method.remote(*call.arguments, seen))
        except RayError as error:
            return _unavailable(call, f"{type(error).__name__} at submission", None)

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

    def _is_worth_another(self, outcome: PixelStoreUnavailable) -> bool:
        if not outcome.is_gone or outcome.shard is None:
            return False
        return self._handles.pop(outcome.shard, None) is not None

    def _wait(self, call: Call, pending: Pending, deadline: Deadline) -> Outcome:
        if isinstance(pending, PixelStoreUnavailable):
            return pending
        try:
            return ray.get(pending, timeout=max(deadline.at - self._clock(), 0.0))
        except GetTimeoutError:
            ray.cancel(pending)
            return _unavailable(call, "no answer", deadline.limit_s)
        except RayTaskError:
            raise
        except RayError as error:
            return _failed(call, error, deadline.limit_s)

    async def _wait_async(self, call: Call, pending: Pending, deadline: Deadline) -> Outcome:
        if isinstance(pending, PixelStoreUnavailable):
            return pending
        try:
            async with asyncio.timeout(max(deadline.at - self._clock(), 0.0)):
                return await pending
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
