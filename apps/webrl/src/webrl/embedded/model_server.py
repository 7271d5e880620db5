"""One embedded server over a model: loads the policy, then answers until it is told to end."""

from __future__ import annotations

import asyncio
import socket

from webrl.embedded.batch import RunningBatch
from webrl.embedded.config import EmbeddedServerConfig
from webrl.embedded.engine import Engine
from webrl.embedded.runner import load_runner
from webrl.embedded.scheduler import RequestScheduler
from webrl.embedded.server import serve
from webrl.embedded.state import ServerState
from webrl.embedded.weights import WeightTable


async def serve_model(config: EmbeddedServerConfig, listener: socket.socket) -> None:
    """Answer on `listener` until SIGTERM or SIGINT."""
    await serve(build_state(config, asyncio.get_running_loop()), listener)


def build_state(config: EmbeddedServerConfig, loop: asyncio.AbstractEventLoop) -> ServerState:
    """Load the model; answers arrive in `loop`."""
    runner = load_runner(config)
    batch = RunningBatch(
        runner,
        max_prefill_tokens=config.max_prefill_tokens,
        cache_bytes=config.prompt_cache_bytes,
    )
    scheduler = RequestScheduler(
        runner,
        batch,
        max_running=config.max_running_requests,
        weight_version=config.weight_version,
    )
    table = WeightTable(runner.model)
    return ServerState(config, runner, table, scheduler, Engine(scheduler, loop))
