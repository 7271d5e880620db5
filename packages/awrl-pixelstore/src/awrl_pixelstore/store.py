"""Getting the store of a run, whoever asks first.

Invariants: all callers with one `run_id` on one Ray cluster get the same shards, however many call at
once; whoever comes first fixes config and layout; another `run_id` never meets them; no shard takes
a CPU from the scheduler.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from awrl_pixelstore.client import PixelStoreClient
from awrl_pixelstore.config import PixelStoreConfig, require_positive
from awrl_pixelstore.errors import PixelStoreError, PixelStoreUnavailable
from awrl_pixelstore.keys import run_tag_of
from awrl_pixelstore.remote_shard import NAMESPACE, actor_name
from awrl_pixelstore.shard import PixelStoreShard
from awrl_pixelstore.wire import StoreSpec

logger = logging.getLogger(__name__)

MAX_CONCURRENT_CALLS = 256
"""Calls that Ray hands to a shard at a time; they hold their arguments while they queue."""
RETRY_PAUSE_S = 0.05
"""Pause before another attempt while a closed store's name is not free yet."""


class ShardActor(PixelStoreShard):
    """A shard inside its Ray actor."""

    def __init__(self, spec: StoreSpec, shard: int) -> None:
        context = ray.get_runtime_context()
        with warnings.catch_warnings():
            # Ray's own property uses a property of Ray that is deprecated.
            warnings.simplefilter("ignore", DeprecationWarning)
            is_restarted = bool(context.was_current_actor_reconstructed)
        super().__init__(spec, shard, end=_end_this_actor, is_restarted=is_restarted)
        home = spec.layout[shard]
        self._is_astray = context.get_node_id() != home and home in _living_nodes()

    async def hello(self) -> StoreSpec | PixelStoreError | None:
        """Answer as every shard; one that holds nothing and is on a wrong node closes instead.

        The affinity is soft, so that a shard outlives its node; the scheduler's view of the nodes
        lags behind by moments, in which soft means anywhere.
        """
        if self._is_astray and self.is_empty:
            await self.stop(True)
        return await super().hello()


def _end_this_actor() -> None:
    ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def get_or_create_pixel_store(
    run_id: str,
    *,
    num_shards: int | None = None,
    node_ids: Sequence[str] | None = None,
    config: PixelStoreConfig | None = None,
    timeout_s: float = 60.0,
    sleep: Callable[[float], None] = time.sleep,
) -> PixelStoreClient:
    """Return a client of the run's store; its actors exist and answer.

    Blocking; call it before an event loop starts, or pickle the client to where it is needed.

    Args:
        run_id: Name of the run; stores of different names never meet.
        num_shards: Actors; None makes one for each node. Ignored when the store exists.
        node_ids: Ray nodes that get the shards in turn, best those that put; None takes all living
            ones, this one first. Ignored when the store exists.
        config: None takes that of an existing store, else the defaults.
        timeout_s: Limit of the whole call.
        sleep: Pauses between attempts.

    Raises:
        ValueError: A bad `run_id`, `num_shards`, `node_ids` or `timeout_s`, or the store exists with
            another config.
        PixelStoreUnavailable: Ray is not initialized, the actors did not answer in time, or their
            disk tier can't be used.
    """
    run_tag_of(run_id)
    require_positive("timeout_s", timeout_s, "Give seconds.")
    if num_shards is not None:
        require_positive("num_shards", num_shards, "Leave it out for one per node.")
    if not ray.is_initialized():
        raise PixelStoreUnavailable("no Ray in this process; call ray.init() first")
    wanted = StoreSpec(run_id, config or PixelStoreConfig(), _layout(num_shards, node_ids))
    deadline = time.monotonic() + timeout_s
    while (spec := _try_to_join(wanted, deadline)) is None:
        if time.monotonic() >= deadline:
            raise PixelStoreUnavailable(f"no living store of run {run_id!r}", limit_s=timeout_s)
        sleep(RETRY_PAUSE_S)
    if config is not None and spec.config != config:
        raise ValueError(
            f"config of run {run_id!r} must be that of its existing store, {spec.config}, got "
            f"{config}. Pass None to join it, or close() it first."
        )
    return PixelStoreClient(spec)


def end_pixel_stores(prefix: str) -> int:
    """End what is left of stores whose run id begins with `prefix`; return how many shards that were.

    For stores whose process was killed: their shards live on and hold their images until someone ends
    them, or the cluster does. Nobody may use these stores any more.
    """
    listed = cast("list[dict[str, str]]", ray.util.list_named_actors(all_namespaces=True))
    names = [entry["name"] for entry in listed if entry["namespace"] == NAMESPACE]
    names = [name for name in names if name.startswith(prefix)]
    for name in names:
        with contextlib.suppress(ValueError):  # it ended meanwhile
            ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)
    return len(names)


def _try_to_join(wanted: StoreSpec, deadline: float) -> StoreSpec | None:
    """Return the agreed spec; None when an actor was just ending, so that it is worth a retry."""
    try:
        first = _shard(wanted, 0)
        spec = _hello([first], deadline)[0]
        if spec is None:
            ray.kill(first, no_restart=True)
        else:
            others = [_shard(spec, shard) for shard in range(1, len(spec.layout))]
            answers = _hello(others, deadline)
            stale = [h for h, answer in zip(others, answers, strict=True) if answer != spec]
            stale += list(_beyond(spec))
            for handle in stale:
                logger.warning("ending a misplaced or earlier shard of run %r", spec.run_id)
                ray.kill(handle, no_restart=True)
            return None if stale else spec
    except GetTimeoutError:
        return None
    except RayActorError as error:
        logger.info("the store of run %r is ending: %s", wanted.run_id, error)
    except ValueError as error:
        # Another creator took the name between Ray's look-up and its creation.
        logger.info("the name of run %r was taken meanwhile: %s", wanted.run_id, error)
    return None


def _shard(spec: StoreSpec, shard: int) -> ActorHandle[ShardActor]:
    node_id = spec.layout[shard]
    actor = ray.remote(ShardActor).options(
        name=actor_name(spec.run_id, shard),
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=-1,
        max_concurrency=MAX_CONCURRENT_CALLS,
        # Ray's head would keep 3.5 kB about each call, for days.
        enable_task_events=False,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=True),
    )
    return cast("ActorHandle[ShardActor]", actor.remote(spec, shard))


def _hello(handles: list[ActorHandle[ShardActor]], deadline: float) -> list[StoreSpec | None]:
    """Return what each shard agreed to; None for one that is closed or astray."""
    references = [handle.hello.remote() for handle in handles]
    answers = ray.get(references, timeout=max(deadline - time.monotonic(), 0.0))
    for handle, answer in zip(handles, answers, strict=True):
        if isinstance(answer, PixelStoreError):
            ray.kill(handle, no_restart=True)
            raise answer
    return cast("list[StoreSpec | None]", answers)


def _beyond(spec: StoreSpec) -> Iterator[ActorHandle[ShardActor]]:
    """Yield shards of an earlier, larger store of the run whose first shard was killed."""
    with contextlib.suppress(ValueError):
        for shard in itertools.count(len(spec.layout)):
            yield ray.get_actor(actor_name(spec.run_id, shard), namespace=NAMESPACE)


def _layout(num_shards: int | None, node_ids: Sequence[str] | None) -> tuple[str, ...]:
    here = ray.get_runtime_context().get_node_id()
    living = _living_nodes()
    if node_ids is None:
        node_ids = [here, *sorted(living - {here})]
    nodes = list(dict.fromkeys(node_ids))
    if not nodes or not living.issuperset(nodes):
        gone = ", ".join(sorted(set(nodes) - living)) or "none at all"
        raise ValueError(
            f"node_ids must be living nodes, got {gone}. Leave it out for all of them."
        )
    count = len(nodes) if num_shards is None else num_shards
    return tuple(nodes[shard % len(nodes)] for shard in range(count))


def _living_nodes() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}
