"""What tests of an inference server share: the server under test, waits, and changed weights."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import torch
from awrl_rollout import SGLangClient


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerUnderTest:
    """The server that the contract suite talks to."""

    url: str
    """Its address."""
    model_path: Path
    """Folder of the checkpoint that it was started with."""
    dtype: torch.dtype
    """Dtype of its weights."""
    is_embedded: bool
    """Whether its HTTP side is ours."""
    has_model: bool = True
    """Whether its tokens are those of its weights."""

    @property
    def tolerance(self) -> float:
        """Largest difference of a log-prob to the HF forward that is rounding."""
        if not self.has_model:
            return math.inf
        if self.dtype != torch.float32:
            return 0.05
        return 1e-4 if self.is_embedded else 1e-3


def run_bounded(scenario: Callable[[], Awaitable[None]], *, deadline_s: float = 180.0) -> None:
    """Run `scenario` in an event loop of its own; it fails when it takes longer."""

    async def bounded() -> None:
        async with asyncio.timeout(deadline_s):
            await scenario()

    asyncio.run(bounded())


async def num_running(client: SGLangClient, server: ServerUnderTest) -> int:
    """Requests in the running batch, from the server's own words."""
    if server.is_embedded:
        states = (await client.server_info())["internal_states"]
        assert isinstance(states, list)
        return int(states[0]["num_running"])
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}/v1/loads") as reply:
        return int((await reply.json())["loads"][0]["num_running_reqs"])


async def until_running(client: SGLangClient, server: ServerUnderTest, count: int) -> None:
    """Return once `count` requests run."""
    while await num_running(client, server) < count:
        pass


def named_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights by name, tied ones once."""
    return dict(model.named_parameters())


def perturb(model: torch.nn.Module, scale: float = 0.05, only: str = "") -> dict[str, torch.Tensor]:
    """Change the model's weights in place; return the changed ones by name."""
    generator = torch.Generator().manual_seed(5)
    changed: dict[str, torch.Tensor] = {}
    for name, weight in model.named_parameters():
        if only in name:
            noise = torch.randn(weight.shape, generator=generator) * scale
            weight.add_(noise.to(weight.dtype))
            changed[name] = weight
    return changed
