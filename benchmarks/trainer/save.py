r"""What a checkpoint costs an update: waiting for the disk, and written in the background.

    PYTHONPATH=packages/awrl-trainer/src:packages/awrl-ppo-loss/src \
        python benchmarks/trainer/save.py --shape 2b --folder /tmp/checkpoints --json save.json

Updates without a save, a save that is waited for, then saves in the background with updates meanwhile.
The first one in the background also allocates the host memory that later ones use again. With 16
micro-batches of 16,384 tokens an update is as long as one pass over a rank's share of a batch of the
published 48 + 16 layout.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from awrl_trainer import ActorConfig, FSDPActor, LossConfig, OptimizerConfig
from step import build, collate_from, rows_of


def make_actor(args: argparse.Namespace) -> tuple[FSDPActor, Any]:
    """Return the actor and its rows."""
    rows, inputs, _ = rows_of(args)
    config = ActorConfig(
        optimizer=OptimizerConfig(lr=1e-6),
        loss=LossConfig(masked_token_ids=(151655, 151656)),
        token_budget=args.tokens,
        compute_dtype="bfloat16",
        checkpointed_block_share=1.0,
    )
    return FSDPActor(build(args), config, collate=collate_from(inputs), device=args.device), rows


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of updates and saves."""
    actor, rows = make_actor(args)

    def timed(act: Any) -> float:
        started = time.perf_counter()
        act()
        if args.device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter() - started

    def update() -> None:
        actor.update(rows)

    update()
    plain_s = [timed(update) for _ in range(args.steps)]
    waited_s = timed(lambda: actor.save(args.folder / "waited", keep=1))
    shutil.rmtree(args.folder / "waited")
    saves: list[dict[str, float]] = []
    for _ in range(2):
        stall_s = timed(lambda: actor.start_save(args.folder / "background", keep=1))
        during_s = timed(update)
        num_updates = 1
        while not actor.is_saved:
            update()
            num_updates += 1
        report = actor.finish_save()
        assert report is not None
        saves.append(
            {
                "stall_s": stall_s,
                "update_meanwhile_s": during_s,
                "write_s": report.write_s,
                "num_bytes": float(report.num_bytes),
                "num_updates": float(num_updates),
            }
        )
        shutil.rmtree(args.folder / "background")
    step_s = sorted(plain_s)[len(plain_s) // 2]
    return {
        "shape": args.shape[0],
        "update_s": step_s,
        "waited_save_s": waited_s,
        "background": saves,
        "stall_share": saves[-1]["stall_s"] / step_s,
        "waited_share": waited_s / step_s,
        "torch": torch.__version__,
    }


def main() -> None:
    """Measure, print one object, and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", nargs=1, default=["2b"])
    parser.add_argument("--kind", nargs=1, default=["text"])
    parser.add_argument("--tokens", type=int, default=16384, help="tokens of a micro-batch")
    parser.add_argument("--micro-batches", type=int, default=16, help="of an update")
    parser.add_argument("--trainable", type=int, default=256, help="trainable tokens of a row")
    parser.add_argument("--steps", type=int, default=3, help="updates without a save")
    parser.add_argument("--folder", type=Path, required=True, help="on the disk that is measured")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.variant = "actor"
    result = measure(args)
    print(json.dumps(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
