"""What the HTTP handlers share: engine, weights, groups, and the requests in flight."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol, TypeVar

import torch
from aiohttp import web

from webrl.embedded.config import EmbeddedServerConfig
from webrl.embedded.engine import Engine
from webrl.embedded.scheduler import RequestScheduler
from webrl.embedded.weight_group import WeightGroups
from webrl.embedded.weights import WeightTable

_NUM_CACHED_BIASES = 64
"""Logit-bias tensors kept: requests of one run mask the same ids."""

ResultT = TypeVar("ResultT")


class ServedModel(Protocol):
    """What the HTTP handlers need of a model."""

    vocab_size: int
    """Ids that it knows."""
    model_type: str
    """Its architecture's short name."""
    architectures: tuple[str, ...]
    """Names of its classes."""

    def text_of(self, token_ids: Sequence[int]) -> str:
        """Return the text of sampled ids, without special tokens."""
        ...


class ServerState:
    """Everything behind the HTTP handlers of one server."""

    def __init__(
        self,
        config: EmbeddedServerConfig,
        runner: ServedModel,
        table: WeightTable,
        scheduler: RequestScheduler,
        engine: Engine,
    ) -> None:
        """Tie the parts together; the engine is started by the server."""
        self.config = config
        self.runner = runner
        self.engine = engine
        self.table = table
        self.groups = WeightGroups(
            device=config.device, timeout_s=config.group_timeout_s, tp_size=config.tp_size
        )
        self.update_lock = asyncio.Lock()
        self.active_rids: set[str] = set()
        self.model_path = config.model_path
        self._scheduler = scheduler
        self._rng = random.Random(config.seed)
        self._num_rids = 0
        self._bias = lru_cache(_NUM_CACHED_BIASES)(self._make_bias)

    @property
    def weight_version(self) -> str:
        """Label of the current weights."""
        return self._scheduler.weight_version

    def next_rid(self) -> str:
        """Return an id for a request that brought none."""
        self._num_rids += 1
        return f"embedded-{self._num_rids}"

    def next_seed(self) -> int:
        """Return a seed for a request that brought none."""
        return self._rng.getrandbits(63)

    def bias(self, logit_bias: dict[str, float] | None) -> torch.Tensor | None:
        """Return the [V] tensor of a logit bias; equal biases share one tensor."""
        return self._bias(tuple(logit_bias.items())) if logit_bias else None

    def _make_bias(self, items: tuple[tuple[str, float], ...]) -> torch.Tensor:
        bias = torch.zeros(self.runner.vocab_size)
        for token_id, value in items:
            bias[int(token_id)] = value
        return bias.to(self.config.device)

    async def update(
        self, apply: Callable[[], None], *, weight_version: str | None, abort_all: bool
    ) -> None:
        """Change the weights between two steps, and the label with them.

        While paused the change is at once; otherwise what runs ends first, under its own version,
        and what waits starts after the change.
        """

        def change(scheduler: RequestScheduler) -> None:
            apply()
            scheduler.weights_changed(weight_version)

        if abort_all:
            await self.engine.call(lambda scheduler: scheduler.abort(""))
        if await self.engine.call(lambda scheduler: scheduler.is_paused):
            await self.engine.call(change)
            return
        try:
            await self.engine.drain()
            await self.engine.call(change)
        finally:
            self.engine.post(lambda: self._scheduler.set_draining(False))


STATE = web.AppKey("state", ServerState)
"""Where the application keeps its state."""
