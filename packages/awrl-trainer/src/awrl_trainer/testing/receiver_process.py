"""A receiver of weights in a child process that joins the group as a real server does.

The child can be told to die when a bucket is announced.
"""

from __future__ import annotations

import asyncio
import multiprocessing as mp
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from awrl_trainer.weights.group import destroy_group, form_group, open_store
from awrl_trainer.weights.plan import Bucket, TensorSpec, tensor_checksum, torch_dtype
from awrl_trainer.weights.protocols import GroupMembership


class ReceiverProcess:
    """A receiver in a child process; use it as an async context manager.

    Args:
        dies_at_update: Count of updates received before, at whose announcement the process ends.
        device: Where the weights are received.
    """

    def __init__(
        self,
        name: str,
        *,
        dies_at_update: int | None = None,
        device: str = "cpu",
    ) -> None:
        self._name = name
        context = mp.get_context("spawn")
        self._pipe, child = context.Pipe()
        # A call whose caller gave up still owns the next answer.
        self._lock = threading.Lock()
        self.process = context.Process(
            target=_serve, args=(child, dies_at_update, device), daemon=True, name=name
        )
        self.process.start()
        child.close()

    @property
    def name(self) -> str:
        """Unique name."""
        return self._name

    @property
    def num_ranks(self) -> int:
        """One."""
        return 1

    async def __aenter__(self) -> ReceiverProcess:
        await self._call("ping")
        return self

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.to_thread(self.close)

    async def weight_index(self) -> Sequence[TensorSpec] | None:
        """Return None: it takes whatever comes."""
        return None

    async def init_weights_group(self, membership: GroupMembership) -> None:
        """Join the group."""
        await self._call("init", membership)

    async def pause_generation(self) -> None:
        """Stop generating."""
        await self._call("pause")

    async def update_weights_from_distributed(
        self, bucket: Bucket, *, group_name: str, weight_version: int | None
    ) -> None:
        """Receive one bucket."""
        await self._call("update", bucket, group_name, weight_version)

    async def continue_generation(self) -> None:
        """Generate again."""
        await self._call("continue")

    async def destroy_weights_group(self, group_name: str) -> None:
        """Leave the group."""
        await self._call("destroy", group_name)

    async def update_weights_from_disk(self, path: str, *, weight_version: int) -> None:
        """Load every safetensors file of a folder."""
        await self._call("load", path, weight_version)

    async def weight_checksums(self, names: Sequence[str]) -> Mapping[str, str]:
        """Return checksums of what was received."""
        return await self._call("checksums", list(names))

    async def weights(self) -> tuple[int | None, bool, dict[str, torch.Tensor]]:
        """Return the version, whether it is paused, and every weight received."""
        return await self._call("weights")

    def close(self) -> None:
        """End the child process."""
        self._pipe.close()
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    async def _call(self, method: str, *arguments: object) -> Any:
        return await asyncio.to_thread(self._call_blocking, method, arguments)

    def _call_blocking(self, method: str, arguments: tuple[object, ...]) -> Any:
        try:
            with self._lock:
                self._pipe.send((method, arguments))
                is_error, answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise ConnectionError(f"receiver {self._name!r} is gone") from error
        if is_error:
            raise RuntimeError(answer)
        return answer


class _Server:
    """What runs in the child."""

    def __init__(self, dies_at_update: int | None, device: str) -> None:
        self._device = device
        self._dies_at_update = dies_at_update
        self._groups: dict[str, tuple[dist.ProcessGroup, TCPStore]] = {}
        self._weights: dict[str, torch.Tensor] = {}
        self._version: int | None = None
        self._is_paused = False
        self._num_updates = 0

    def init(self, membership: GroupMembership) -> None:
        store = open_store(
            membership.master_address,
            rank=membership.rank_offset,
            world_size=membership.world_size,
            timeout_s=60.0,
            port=membership.master_port,
        )
        group = form_group(
            store,
            rank=membership.rank_offset,
            world_size=membership.world_size,
            group_name=membership.group_name,
            backend=membership.backend,
            timeout_s=60.0,
        )
        self._groups[membership.group_name] = (group, store)

    def ping(self) -> None:
        pass

    def pause(self) -> None:
        self._is_paused = True

    def update(self, bucket: Bucket, group_name: str, version: int | None) -> None:
        if self._dies_at_update == self._num_updates:
            os.kill(os.getpid(), signal.SIGKILL)
        self._num_updates += 1
        flat = torch.empty(bucket.num_bytes, dtype=torch.uint8, device=self._device)
        dist.broadcast(flat, src=0, group=self._groups[group_name][0])
        if flat.is_cuda:
            torch.cuda.synchronize(flat.device)
        self._weights |= bucket.unflatten(flat.view(torch_dtype(bucket.dtypes[0])))
        if version is not None:
            self._version = version

    def load(self, path: str, version: int) -> None:
        for file in sorted(Path(path).glob("*.safetensors")):
            self._weights |= load_file(file)
        self._version = version

    def resume(self) -> None:
        self._is_paused = False

    def destroy(self, group_name: str) -> None:
        if group_name in self._groups:
            destroy_group(self._groups.pop(group_name)[0])

    def checksums(self, names: list[str]) -> dict[str, str]:
        return {name: tensor_checksum(self._weights[name]) for name in names}

    def weights(self) -> tuple[int | None, bool, dict[str, torch.Tensor]]:
        return self._version, self._is_paused, {n: w.cpu() for n, w in self._weights.items()}


def _serve(pipe: Connection, dies_at_update: int | None, device: str) -> None:
    torch.set_num_threads(1)
    if device.startswith("cuda:"):
        torch.cuda.set_device(device)
    server = _Server(dies_at_update, device)
    methods = {
        "ping": server.ping,
        "init": server.init,
        "pause": server.pause,
        "update": server.update,
        "load": server.load,
        "continue": server.resume,
        "destroy": server.destroy,
        "checksums": server.checksums,
        "weights": server.weights,
    }
    while True:
        try:
            method, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            pipe.send((False, methods[method](*arguments)))
        except (RuntimeError, ValueError, KeyError) as error:
            pipe.send((True, f"{type(error).__name__}: {error}"))
