"""The process group of rank 0 and the receivers.

Invariants:

* The rendezvous store is bound before its port is told to anybody: no port is picked and lost.
* A group's name is used once; the default process group is never touched.
* The group is formed as SGLang forms it: `tcp://` rendezvous, `PrefixStore(group_name)`, then torch's
  own construction. Both sides must agree on every key in the store.
* A broadcast that a member never joins becomes an error within the group's time-out, with nccl too,
  where torch's own watchdog would end the process instead.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import (
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
    Store,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)
from torch.distributed import distributed_c10d as c10d


def open_store(
    host: str, *, rank: int, world_size: int, timeout_s: float, port: int = 0
) -> TCPStore:
    """Open the rendezvous store of a group: rank 0 binds it, all others connect.

    Args:
        host: Address of rank 0 that the others can reach.
        timeout_s: Seconds that any wait on the store may take.
        port: Rank 0's; with 0 the system chooses a free one for rank 0, and the store's `port` tells.

    Raises:
        OSError: Rank 0's port is taken, or the address is not this machine's.
    """
    listening = _listen(host, port) if rank == 0 else None
    return TCPStore(
        host,
        port if listening is None else listening.getsockname()[1],
        world_size,
        is_master=rank == 0,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=None if listening is None else listening.detach(),
    )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        # Left to itself, a store listens on every address of the machine.
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise OSError(
            f"port must be free on {host!r}, got {port} which can't be bound: {error}."
            " Use port 0 to let the system choose."
        ) from error


def form_group(
    store: Store,
    *,
    rank: int,
    world_size: int,
    group_name: str,
    backend: str,
    timeout_s: float,
) -> dist.ProcessGroup:
    """Join the group; returns when all members are there.

    Args:
        store: The rendezvous store, bound or connected.
        rank: 0 for the trainer, 1 and up for receivers.
        group_name: A name never used before in this process.
        backend: `nccl` or `gloo`.
        timeout_s: Seconds that forming, and each collective later, may take.
    """
    timeout = timedelta(seconds=timeout_s)
    prefixed = PrefixStore(group_name, store)
    prefixed.set_timeout(timeout)
    helper: Any = c10d._new_process_group_helper  # pyright: ignore[reportPrivateUsage]
    with _blocking_wait():
        group, _ = helper(
            world_size,
            rank,
            [],
            dist.Backend(backend),
            prefixed,
            group_name=group_name,
            timeout=timeout,
        )
    world: Any = c10d._world  # pyright: ignore[reportPrivateUsage]
    world.pg_group_ranks[group] = {member: member for member in range(world_size)}
    return group


def destroy_group(group: dist.ProcessGroup, *, is_broken: bool = False) -> None:
    """Leave the group and free its name.

    Args:
        group: What `form_group` returned.
        is_broken: A collective failed: communicators are aborted, nobody is waited for.
    """
    if is_broken and dist.get_backend(group) == "nccl":
        abort: Any = c10d._abort_process_group  # pyright: ignore[reportPrivateUsage]
        abort(group)
        return
    dist.destroy_process_group(group)


@contextmanager
def _blocking_wait() -> Generator[None]:
    """Let a nccl group built in here raise from `wait` after its time-out.

    Torch reads the variable when it builds a group; those of the trainer's own ranks stay as they are.
    """
    name = "TORCH_NCCL_BLOCKING_WAIT"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
