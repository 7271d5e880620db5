r"""The publish window and its parts, beside a bare broadcast of the same bytes.

    PYTHONPATH=packages/awrl-trainer/src:packages/awrl-ppo-loss/src \
        python benchmarks/trainer/publish.py --shape 4b --json publish.json

One receiver in a process of its own: on the trainer's device over gloo (which shares a GPU between
members), or with `--backend nccl --receiver-device cuda:1` on a GPU of its own. `bare` is a loop of
broadcasts between two processes in a group of the same kind, of buckets of the same sizes, without
any request in between. `gathered` publishes buckets that were gathered before, `overlapped` and
`sequential` gather them in the window, with and without the next gather running beside a broadcast.
At the end the checksums of all weights are compared, not only of a sample.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing as mp
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from awrl_trainer import (
    ActorConfig,
    FSDPActor,
    LocalSource,
    OptimizerConfig,
    PublisherConfig,
    WeightPublisher,
    WeightSender,
    collate_text,
)
from awrl_trainer.testing import ReceiverProcess
from shapes import SHAPES, config_of
from transformers import Qwen3VLForConditionalGeneration

CASES = ("overlapped", "sequential", "gathered")
PARTS = ("handshake", "pause", "gather", "broadcast", "switch", "resume", "window", "verify")


def build_actor(args: argparse.Namespace, *, is_overlapped: bool) -> FSDPActor:
    """Return an actor that publishes bfloat16 in buckets of the given size."""
    torch.manual_seed(0)
    with torch.device(args.device):
        model = Qwen3VLForConditionalGeneration(config_of(SHAPES[args.shape])).float()
    return FSDPActor(
        model,
        ActorConfig(
            optimizer=OptimizerConfig(kind="sgd", lr=0.0),
            publish_bucket_bytes=args.bucket_mib * 2**20,
            is_publish_overlapped=is_overlapped,
        ),
        collate=collate_text,
        device=args.device,
    )


def broadcast_bare(
    rank: int, meeting: str, sizes: list[int], devices: list[str], backend: str, times: Any
) -> None:
    """Broadcast buffers of these sizes and put the seconds that each repeat took into `times`."""
    device = devices[rank]
    if device.startswith("cuda:"):
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend, init_method=f"file://{meeting}", rank=rank, world_size=len(devices)
    )
    buffers = {size: torch.zeros(size, dtype=torch.uint8, device=device) for size in set(sizes)}
    for _ in range(4):
        dist.barrier()
        started = time.perf_counter()
        for size in sizes:
            dist.broadcast(buffers[size], src=0)
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        if rank == 0:
            times.put(time.perf_counter() - started)
    dist.destroy_process_group()


def measure_bare(devices: list[str], backend: str, sizes: list[int]) -> float:
    """Return the median seconds of a bare broadcast, the first (which connects) left out.

    Args:
        devices: Of each member, the sender's first.
        backend: `gloo` or `nccl`.
        sizes: Bytes of each buffer in turn.
    """
    context = mp.get_context("spawn")
    times = context.Queue()
    meeting = str(Path(tempfile.mkdtemp()) / "store")
    members = [
        context.Process(
            target=broadcast_bare,
            args=(rank, meeting, sizes, devices, backend, times),
        )
        for rank in range(len(devices))
    ]
    for member in members:
        member.start()
    seconds = [times.get(timeout=300) for _ in range(4)]
    for member in members:
        member.join()
    return statistics.median(seconds[1:])


async def measure(actor: FSDPActor, args: argparse.Namespace, *, is_whole: bool) -> dict[str, Any]:
    """Publish several times to one receiver and return medians of the window's parts."""
    limits = PublisherConfig(
        backend=args.backend,
        handshake_deadline_s=60,
        pause_deadline_s=60,
        # Below the limit of the whole case: what stands still is an error with a reason.
        broadcast_deadline_s=20,
        num_verified_tensors=8,
    )
    source = LocalSource(actor.sender)
    async with ReceiverProcess("receiver", device=args.receiver_device) as receiver:
        publisher = WeightPublisher(source, [receiver], limits)
        reports = [await publisher.publish(version) for version in range(args.repeats + 1)]
        figures: dict[str, Any] = {
            f"{part}_s": statistics.median(getattr(r, f"{part}_s") for r in reports[1:])
            for part in PARTS
        }
        figures["first_window_s"] = reports[0].window_s
        figures["first_handshake_s"] = reports[0].handshake_s
        if is_whole:
            names = [spec.name for spec in actor.sender.plan.specs]
            async with asyncio.TaskGroup() as group:
                sent = group.create_task(source.send(WeightSender.checksums, names))
                held = group.create_task(receiver.weight_checksums(names))
            figures["num_weights"] = len(names)
            figures["is_every_weight_equal"] = sent.result() == held.result()
        await publisher.aclose()
    is_held = all(report.receivers == ("receiver",) for report in reports)
    return {**figures, "num_bytes": reports[0].num_bytes, "is_verified": is_held}


def run_case(args: argparse.Namespace, case: str, bare_s: float) -> dict[str, Any]:
    """Publish in one way and return its line."""
    actor = build_actor(args, is_overlapped=case == "overlapped")
    if case == "gathered":
        flats = [actor.sender.gather(bucket) for bucket in actor.sender.plan.buckets]
        actor.sender.gather = lambda bucket: flats[bucket.index]
    figures = asyncio.run(measure(actor, args, is_whole=case == "overlapped"))
    return {"case": case, **figures, "broadcast_to_bare": figures["broadcast_s"] / bare_s}


def main() -> None:
    """Measure the bare broadcast and the cases, and print their lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="4b", choices=sorted(SHAPES))
    parser.add_argument("--bucket-mib", type=int, default=256)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--backend", default="gloo", choices=["gloo", "nccl"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--receiver-device", help="default: the trainer's")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.receiver_device = args.receiver_device or args.device
    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration(config_of(SHAPES[args.shape]))
    head = {"shape": args.shape, "backend": args.backend, "device": args.device}
    head["receiver_device"] = args.receiver_device
    plan = WeightSender(list(model.named_parameters()), bucket_bytes=args.bucket_mib * 2**20).plan
    sizes = [bucket.num_bytes for bucket in plan.buckets]
    bare_s = measure_bare([args.device, args.receiver_device], args.backend, sizes)
    results: list[dict[str, Any]] = [
        {**head, "case": "bare", "broadcast_s": bare_s, "num_bytes": plan.num_bytes}
    ]
    print(json.dumps(results[-1]), flush=True)
    for case in args.cases:
        results.append({**head, **run_case(args, case, bare_s)})
        print(json.dumps(results[-1]), flush=True)
        if args.device.startswith("cuda"):
            torch.cuda.empty_cache()
        if args.json:
            args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
