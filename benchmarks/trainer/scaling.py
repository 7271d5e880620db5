"""Tokens a second of one optimizer step over 1, 2, 4 ... ranks of FSDP on one host.

    python benchmarks/trainer/scaling.py --shape 4b --ranks 1 2 --json scaling.json

The step is the same for every number of ranks (`--micro-batches` in all, dealt to the ranks), so that
perfect scaling is as many times the tokens a second. A rank is a process with a GPU of its own; with
`--device cpu` they speak gloo, for a look.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from shapes import SHAPES, useful_flops
from step import PEAK_FLOPS, actor_step, build, rows_of


def run_rank(rank: int, num_ranks: int, meeting: str, args: argparse.Namespace, out: Any) -> None:
    """Run updates as one rank; rank 0 puts the figures into `out`."""
    is_cuda = args.device != "cpu"
    if is_cuda:
        torch.cuda.set_device(rank)
        args.device = f"cuda:{rank}"
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if is_cuda else "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=num_ranks,
    )
    rows, inputs, grid = rows_of(args)
    model = build(args)
    flops = useful_flops(model, SHAPES[args.shape[0]], rows, grid)
    step = actor_step(args, model, rows, inputs)
    del model
    seconds: list[float] = []
    for _ in range(args.steps + 2):
        dist.barrier()
        started = time.perf_counter()
        step()
        if is_cuda:
            torch.cuda.synchronize()
        dist.barrier()
        seconds.append(time.perf_counter() - started)
    if rank == 0:
        median = statistics.median(seconds[2:])
        tokens = sum(row.cost_tokens for row in rows)
        out.put(
            {
                "shape": args.shape[0],
                "ranks": num_ranks,
                "tokens": tokens,
                "step_s": median,
                "tokens_per_s": tokens / median,
                "model_flop_utilisation": (
                    flops / median / PEAK_FLOPS / num_ranks if is_cuda else None
                ),
                "peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30 if is_cuda else None,
            }
        )
    dist.destroy_process_group()


def run_ranks(num_ranks: int, args: argparse.Namespace) -> dict[str, Any]:
    """Run one number of ranks and return its figures."""
    context = mp.get_context("spawn")
    out = context.Queue()
    meeting = str(Path(tempfile.mkdtemp()) / "store")
    members = [
        context.Process(target=run_rank, args=(rank, num_ranks, meeting, args, out))
        for rank in range(num_ranks)
    ]
    for member in members:
        member.start()
    try:
        return out.get(timeout=args.case_limit_s)
    finally:
        for member in members:
            member.join(20)
            if member.is_alive():
                member.kill()


def main() -> None:
    """Run every number of ranks and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", nargs=1, default=["4b"], choices=sorted(SHAPES))
    parser.add_argument("--kind", nargs=1, default=["text"], choices=["text", "image"])
    parser.add_argument("--variant", default="actor_compiled")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tokens", type=int, default=16384, help="tokens of a micro-batch")
    parser.add_argument("--micro-batches", type=int, default=8, help="of an optimizer step, in all")
    parser.add_argument("--trainable", type=int, default=256, help="trainable tokens of a row")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--case-limit-s", type=float, default=180.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results: list[dict[str, Any]] = []
    for num_ranks in args.ranks:
        results.append(run_ranks(num_ranks, args))
        results[-1]["scaling"] = results[-1]["tokens_per_s"] / results[0]["tokens_per_s"]
        print(json.dumps(results[-1]), flush=True)
        if args.json:
            args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
