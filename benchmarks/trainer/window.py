"""The publish window with real SGLang servers, one GPU each, and a server killed in the middle of it.

    python benchmarks/trainer/window.py OUT --shape 8b --bucket-mib 256 1024 4096

The trainer's rank is on the first GPU, a server on each other one, weights travel over nccl. Servers
start from random weights of their own, so that only an update makes them the trainer's. Four clients
ask each server for text all the time. For each bucket size: the parts of the window and a bare nccl
broadcast of the same buffers to the same GPUs. Then bit-equality: the fingerprint of all weights in a
server after an update over nccl, after other weights, and after loading the same weights from disk.
At last a server is killed when a bucket is announced to it: the publish must end within its deadlines,
and a restarted server must get the newest weights. One JSON object a line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import torch
from awrl_trainer import (
    FSDPActor,
    LocalSource,
    PublisherConfig,
    PublishError,
    PublishReport,
    SnapshotWriter,
    WeightPublisher,
    WeightSender,
)
from publish import PARTS, build_actor, measure_bare
from servers import NUM_CLIENTS, SERVER_ARGUMENTS, MortalReceiver, Servers, write_policy
from shapes import SHAPES
from torch.distributed.tensor import DTensor
from webrl.launch.system import RANK_ENVIRONMENT


def say(args: argparse.Namespace, **line: Any) -> None:
    """Print one line and keep it."""
    line = {"shape": args.shape, "num_servers": args.num_servers, **line}
    text = json.dumps(line)
    print(text, flush=True)
    with (args.out / "window.jsonl").open("a") as file:
        file.write(text + "\n")


def medians(reports: list[PublishReport]) -> dict[str, float]:
    """Return the median of each part."""
    return {f"{p}_s": statistics.median(getattr(r, f"{p}_s") for r in reports) for p in PARTS}


def set_plan(actor: FSDPActor, bucket_mib: int) -> list[int]:
    """Cut the weights into other buckets and return their bytes."""
    named = list(actor.policy.model.named_parameters())
    actor.sender = WeightSender(named, bucket_bytes=bucket_mib * 2**20)
    return [bucket.num_bytes for bucket in actor.sender.plan.buckets]


def perturb(model: torch.nn.Module, seed: int) -> None:
    """Change every weight a little."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            local.mul_(1 + 0.1 * torch.rand_like(local))


class Study:
    """One actor and its servers."""

    def __init__(self, args: argparse.Namespace, actor: FSDPActor, servers: Servers) -> None:
        """Remember them."""
        self._args, self._actor, self._servers = args, actor, servers
        self._version = 0

    def publisher(self, receivers: list[MortalReceiver]) -> WeightPublisher:
        """Return a publisher over nccl whose groups have names of their own."""
        limits = PublisherConfig(
            backend=self._args.backend,
            group_prefix=f"window-{self._version}",
            broadcast_deadline_s=self._args.deadline_s,
        )
        return WeightPublisher(LocalSource(self._actor.sender), receivers, limits)

    async def publish(self, publisher: WeightPublisher) -> PublishReport:
        """Publish the next version."""
        self._version += 1
        return await publisher.publish(self._version)

    async def receivers(self) -> list[MortalReceiver]:
        """Return a receiver of each server."""
        return [await self._servers.receiver(i) for i in range(self._args.num_servers)]

    async def windows(self, bucket_mib: int) -> None:
        """Publish several times with one bucket size, beside a bare broadcast."""
        sizes = set_plan(self._actor, bucket_mib)
        devices = [f"cuda:{i}" for i in range(self._args.num_servers + 1)]
        if self._args.device == "cpu":
            devices = ["cpu"] * len(devices)
        bare_s = await asyncio.to_thread(measure_bare, devices, self._args.backend, sizes)
        publisher = self.publisher(await self.receivers())
        before = len(self._servers.answers)
        reports = [await self.publish(publisher) for _ in range(self._args.repeats + 1)]
        answered = self._servers.answers[before:]
        await publisher.aclose()
        parts = medians(reports[1:])
        say(
            self._args,
            case="window",
            bucket_mib=bucket_mib,
            num_buckets=len(sizes),
            num_bytes=sum(sizes),
            bare_s=bare_s,
            **parts,
            broadcast_to_bare=parts["broadcast_s"] / bare_s,
            first_handshake_s=reports[0].handshake_s,
            first_window_s=reports[0].window_s,
            answers=len(answered),
            versions_go_back=self.num_back(answered),
        )

    def num_back(self, answered: list[tuple[int, int]]) -> int:
        """Return how many answers of a server are of an older version than the one before."""
        latest: dict[int, int] = {}
        count = 0
        for server, version in answered:
            count += version < latest.get(server, 0)
            latest[server] = max(version, latest.get(server, 0))
        return count

    async def equality(self) -> None:
        """Compare the fingerprint after an update over nccl with that after a load from disk."""
        folder = self._args.out / "snapshots"
        written = self._actor.write_snapshot(SnapshotWriter(folder, base=self._args.out / "policy"))
        assert written is not None
        publisher = self.publisher(await self.receivers())
        await self.publish(publisher)
        sent = [await self._servers.fingerprint(i) for i in range(self._args.num_servers)]
        perturb(self._actor.policy.model, seed=1)
        await self.publish(publisher)
        other = [await self._servers.fingerprint(i) for i in range(self._args.num_servers)]
        await publisher.aclose()
        await self._servers.load(0, written)
        loaded = await self._servers.fingerprint(0)
        say(
            self._args,
            case="fingerprint",
            over_nccl=sent,
            after_other_weights=other,
            from_disk=loaded,
            is_equal=set(sent) == {loaded},
            is_sensitive=loaded not in other,
        )

    async def kill(self) -> None:
        """Kill the last server in the middle of an update and take its successor in."""
        receivers = await self.receivers()
        publisher = self.publisher(receivers)
        await self.publish(publisher)
        last = self._args.num_servers - 1
        receivers[last].victim = await self._servers.servers[last].pid()
        receivers[last].at_bucket = len(self._actor.sender.plan.buckets) // 2
        started = time.perf_counter()
        try:
            held = (await self.publish(publisher)).receivers
            error = None
        except PublishError as refused:
            held, error = (), str(refused)[:200]
        ended = time.perf_counter() - started
        self._servers.urls[last] = await self._servers.restart(last)
        fresh = await self._servers.receiver(last)
        await publisher.rejoin(fresh)
        report = await self.publish(publisher)
        marks = {await self._servers.fingerprint(i) for i in range(self._args.num_servers)}
        await publisher.aclose()
        say(
            self._args,
            case="killed",
            publish_ended_after_s=ended,
            deadline_s=self._args.deadline_s,
            receivers_of_that_publish=held,
            error=error,
            receivers_after_rejoin=report.receivers,
            servers_are_equal=len(marks) == 1,
        )


async def study(args: argparse.Namespace) -> None:
    """Run every case."""
    args.out.mkdir(parents=True, exist_ok=True)
    policy = args.out / "policy"
    write_policy(policy, args.shape)
    async with AsyncExitStack() as stack:
        servers = Servers(args, policy, stack)
        started = time.perf_counter()
        whole = argparse.Namespace(shape=args.shape, device=args.device, bucket_mib=256)
        async with asyncio.TaskGroup() as starting:
            starting.create_task(servers.start())
            building = starting.create_task(
                asyncio.to_thread(build_actor, whole, is_overlapped=True)
            )
        actor = building.result()
        say(args, case="start", seconds=time.perf_counter() - started)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        asking = [
            group.create_task(servers.ask(index))
            for index in range(args.num_servers)
            for _ in range(NUM_CLIENTS)
        ]
        one = Study(args, actor, servers)
        try:
            for bucket_mib in args.bucket_mib:
                await one.windows(bucket_mib)
            if "fingerprint" in args.cases:
                await one.equality()
            if "kill" in args.cases:
                await one.kill()
        finally:
            for task in asking:
                task.cancel()


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", default="2b", choices=sorted(SHAPES))
    parser.add_argument("--bucket-mib", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--cases", nargs="*", default=["fingerprint", "kill"])
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--num-servers", type=int, default=torch.cuda.device_count() - 1)
    parser.add_argument("--deadline-s", type=float, default=15.0, help="of each bucket")
    parser.add_argument("--start-s", type=float, default=300.0, help="deadline of a server's start")
    parser.add_argument("--backend", default="nccl", choices=["nccl", "gloo"])
    parser.add_argument("--device", default="cuda:0", help="of the trainer; cpu for a look")
    parser.add_argument("--server-args", default=SERVER_ARGUMENTS + " --mem-fraction-static 0.5")
    args = parser.parse_args()
    if args.num_servers < 1:
        raise SystemExit("needs two CUDA devices: one for the trainer, one for each server")
    args.out = args.out.absolute()
    os.environ.update(RANK_ENVIRONMENT)
    asyncio.run(study(args))


if __name__ == "__main__":
    main()
