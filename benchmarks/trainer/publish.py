r"""The publish window and its parts, beside a raw broadcast of the same bytes in the same group.

    PYTHONPATH=packages/awrl-trainer/src:packages/awrl-ppo-loss/src \
        python benchmarks/trainer/publish.py --shape 4b --json publish.json

One receiver in a process of its own, on the same device, over gloo (which shares a GPU between members).
`raw` sends buckets that were gathered before; `overlapped` and `sequential` gather them during the
window, with and without the next gather running beside a broadcast.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from awrl_trainer import (
    ActorConfig,
    FSDPActor,
    LocalWeightSource,
    OptimizerConfig,
    PublisherConfig,
    XcclPublisher,
    collate_text,
)
from awrl_trainer.testing import GlooReceiverProcess
from shapes import SHAPES, config_of
from transformers import Qwen3VLForConditionalGeneration

LIMITS = PublisherConfig(
    handshake_deadline_s=120, pause_deadline_s=120, broadcast_deadline_s=120, num_verified_tensors=8
)


def build_actor(args: argparse.Namespace, *, is_overlapped: bool, model: Any) -> FSDPActor:
    """Return an actor that publishes bfloat16 in buckets of the given size."""
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


async def measure(actor: FSDPActor, device: str, repeats: int) -> dict[str, Any]:
    """Publish several times to one receiver and return medians of the window's parts."""
    async with GlooReceiverProcess("receiver", device=device) as receiver:
        publisher = XcclPublisher(LocalWeightSource(actor), [receiver], LIMITS)
        await publisher.publish(0)
        reports = [await publisher.publish(version + 1) for version in range(repeats)]
        await publisher.aclose()
    parts = ("pause", "gather", "broadcast", "switch", "resume", "window", "verify")
    figures = {
        f"{part}_s": statistics.median(getattr(report, f"{part}_s") for report in reports)
        for part in parts
    }
    held = bool(reports) and all(report.receivers == ("receiver",) for report in reports)
    return {**figures, "num_bytes": reports[0].num_bytes, "is_verified": held}


def main() -> None:
    """Measure the three cases and print their lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="4b", choices=sorted(SHAPES))
    parser.add_argument("--bucket-mib", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results: list[dict[str, Any]] = []
    for case in ("raw", "overlapped", "sequential"):
        torch.manual_seed(0)
        with torch.device(args.device):
            model = Qwen3VLForConditionalGeneration(config_of(SHAPES[args.shape])).float()
        actor = build_actor(args, is_overlapped=case == "overlapped", model=model)
        if case == "raw":
            flats = [actor.sender.gather(bucket) for bucket in actor.publish_plan().buckets]
            actor.sender.gather = lambda bucket, flats=flats: flats[bucket.index]
        figures = asyncio.run(measure(actor, args.device, args.repeats))
        results.append({"case": case, "shape": args.shape, "device": args.device, **figures})
        results[-1]["broadcast_to_raw"] = figures["broadcast_s"] / results[0]["broadcast_s"]
        print(json.dumps(results[-1]), flush=True)
        del actor, model
        if args.device.startswith("cuda"):
            torch.cuda.empty_cache()
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
