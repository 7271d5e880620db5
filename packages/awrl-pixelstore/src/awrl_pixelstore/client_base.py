"""What blocking and awaiting calls share: state of a client, and the drivers of its operations.

Consumes: operations (generators of calls). Produces: their results. Waits for: shards, each
operation at most its limit. Unblocked by: answers, the limit, or cancellation.
"""

from collections.abc import Sequence
from typing import TypeVar

import ray

from awrl_pixelstore.cache import CacheStatistics
from awrl_pixelstore.operations import Answer, Steps, StoreOperations
from awrl_pixelstore.pressure import Pressure
from awrl_pixelstore.transport import ShardTransport
from awrl_pixelstore.wire import Call, StoreSpec

T = TypeVar("T")


class ClientBase:
    """Drives operations, blocking or awaiting.

    Args:
        spec: What the store's creator fixed.
    """

    def __init__(self, spec: StoreSpec) -> None:
        self.spec = spec
        node_id = ray.get_runtime_context().get_node_id()
        self._transport = ShardTransport(spec, node_id)
        self._operations = StoreOperations(spec, node_id)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as the spec alone: caches and actor handles stay in their process."""
        return type(self), (self.spec,)

    @property
    def run_id(self) -> str:
        """Name of the run whose store this is."""
        return self.spec.run_id

    @property
    def num_shards(self) -> int:
        """Shards of the store."""
        return len(self.spec.layout)

    def cache_statistics(self) -> CacheStatistics:
        """Return what this client's read cache holds and did; no call."""
        return self._operations.cache.statistics()

    def pressure_nowait(self) -> Pressure:
        """Return the fullness at the last answer that this client had; no call."""
        return self._operations.last_pressure()

    def _drive(self, steps: Steps[T], limit_s: float | None) -> T:
        deadline = self._transport.deadline(limit_s)
        answers: list[Answer]
        try:
            calls = next(steps)
            while True:
                seen = self._operations.seen(calls)
                outcomes = self._transport.collect(calls, seen, deadline)
                answers = self._operations.absorb(calls, seen, outcomes)
                del outcomes
                calls = steps.send(answers)
        except StopIteration as stop:
            return stop.value

    async def _drive_async(self, steps: Steps[T], limit_s: float | None) -> T:
        deadline = self._transport.deadline(limit_s)
        answers: list[Answer]
        try:
            calls: Sequence[Call] = next(steps)
            while True:
                seen = self._operations.seen(calls)
                outcomes = await self._transport.collect_async(calls, seen, deadline)
                answers = self._operations.absorb(calls, seen, outcomes)
                del outcomes
                calls = steps.send(answers)
        except StopIteration as stop:
            return stop.value
