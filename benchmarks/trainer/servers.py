"""Real SGLang servers for `window.py`: without weights of the trainer, one GPU each, asked all the time."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
from awrl_rollout import GenerateRequest, RolloutError, SGLangClient
from awrl_trainer import Bucket
from shapes import SHAPES, config_of
from webrl.policy import InitPolicyConfig, WarmupConfig, init_policy
from webrl.servers.server_actor import InferenceServer, ServerSpec
from webrl.training.publishing import SGLangReceiver

SERVER_ARGUMENTS = (
    "--attention-backend triton --sampling-backend pytorch --grammar-backend none "
    "--mm-attention-backend sdpa --disable-cuda-graph --max-total-tokens 65536 --dtype bfloat16"
)
NUM_CLIENTS = 4
"""Of each server."""


def write_policy(folder: Path, shape: str) -> None:
    """Write a checkpoint without weights: configuration of the shape, tokenizer of the tiny policy."""
    init_policy(folder, InitPolicyConfig(merge=2, warmup=WarmupConfig(num_updates=0)))
    tiny = json.loads((folder / "config.json").read_text())
    config = config_of(SHAPES[shape])
    for name in ("image", "video", "vision_start", "vision_end"):
        setattr(config, f"{name}_token_id", tiny[f"{name}_token_id"])
    config.architectures = ["Qwen3VLForConditionalGeneration"]
    config.save_pretrained(folder)
    for weights in folder.glob("*.safetensors*"):
        weights.unlink()


class MortalReceiver(SGLangReceiver):
    """A receiver whose server is killed when a bucket is announced to it."""

    victim: int | None = None
    """Process id of the server, leader of its group."""
    at_bucket: int = 0

    async def update_weights_from_distributed(
        self, bucket: Bucket, *, group_name: str, weight_version: int | None
    ) -> None:
        """Kill, or receive."""
        if self.victim is not None and bucket.index == self.at_bucket:
            os.killpg(self.victim, signal.SIGKILL)
        await super().update_weights_from_distributed(
            bucket, group_name=group_name, weight_version=weight_version
        )


class Servers:
    """Servers on the GPUs behind the first one, their clients and their receivers."""

    def __init__(self, args: argparse.Namespace, policy: Path, stack: AsyncExitStack) -> None:
        """Start nothing yet."""
        self._args, self._policy, self._stack = args, policy, stack
        self.servers: list[InferenceServer] = []
        self.urls: list[str] = []
        self.answers: list[tuple[int, int]] = []
        """Server and versions of each answer, in order."""

    async def start(self) -> None:
        """Start a server on each GPU but the first."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.restart(i)) for i in range(self._args.num_servers)]
        self.urls = [task.result() for task in tasks]

    async def restart(self, index: int) -> str:
        """Start one server, again or at first, and return its address."""
        extra = f"{self._args.server_args} --load-format dummy"
        if self._args.device != "cpu":
            extra += f" --base-gpu-id {index + 1}"
        spec = ServerSpec(
            backend="sglang",
            model_path=str(self._policy),
            start_timeout_s=self._args.start_s,
            extra_args=tuple(extra.split()),
        )
        server = InferenceServer(spec, 0, f"server-{index}", str(self._args.out))
        self._stack.callback(server.stop)
        self.servers[index:] = [server, *self.servers[index + 1 :]]
        return await server.start()

    async def receiver(self, index: int) -> MortalReceiver:
        """Return a receiver with a client of its own."""
        client = await self._stack.enter_async_context(SGLangClient(self.urls[index]))
        return MortalReceiver(f"rollout/{index}", client)

    async def ask(self, index: int) -> None:
        """Ask one server for text until cancelled."""
        request = GenerateRequest(input_ids=[20, 21, 22, 23], images=[], max_new_tokens=16)
        async with SGLangClient(self.urls[index]) as client:
            while True:
                try:
                    answer = await client.generate(request)
                except RolloutError:
                    await asyncio.sleep(0.2)
                    continue
                self.answers += [(index, version) for version in set(answer.versions)]

    async def fingerprint(self, index: int) -> str:
        """Return one checksum of all weights of a server."""
        async with SGLangClient(self.urls[index]) as client:
            return (await client.weights.checksums(deadline_s=300)).total

    async def load(self, index: int, folder: Path) -> None:
        """Make a server load a snapshot."""
        body = {"model_path": str(folder), "load_format": "auto", "abort_all_requests": True}
        timeout = aiohttp.ClientTimeout(total=300)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            url = f"{self.urls[index]}/update_weights_from_disk"
            async with session.post(url, json=body) as reply:
                answer = await reply.json()
        if not answer.get("success"):
            raise SystemExit(f"the server refused the snapshot: {answer}")
