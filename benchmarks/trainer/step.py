r"""Tokens a second, utilisation and memory of an update, beside the same model in a plain loop.

    PYTHONPATH=packages/awrl-trainer/src:packages/awrl-ppo-loss/src \
        python benchmarks/trainer/step.py --shape 2b 4b --kind text image --json step.json

Each case runs in a process of its own, one after the other; the table has one line per case. An update is
one optimizer step over `--micro-batches` micro-batches of `--tokens` tokens, for all cases alike. `plain`
is the same model in float32 under bfloat16 autocast with transformers' own checkpointing, logits of all
tokens, fused AdamW. Utilisation counts useful operations only (no recomputation) against 989 TFLOP/s,
the dense bfloat16 rate that the H200's data sheet gives.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from awrl_ppo_loss import PolicyBatch, policy_loss
from awrl_trainer import (
    ActorConfig,
    Batch,
    FSDPActor,
    LossConfig,
    OptimizerConfig,
    TrainRow,
    collate_model_inputs,
)
from awrl_trainer.hf import use_packed_attention
from shapes import SHAPES, Inputs, config_of, make_row, useful_flops
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import Qwen3VLForConditionalGeneration

PEAK_FLOPS = 989e12
VARIANTS = (
    "plain",
    "actor",
    "actor_packed",
    "actor_compiled",
    "actor_compiled_half",
    "actor_compiled_cudnn",
)
"""`half` recomputes every second block only; `cudnn` prefers cuDNN's attention kernels."""


def rows_of(args: argparse.Namespace) -> tuple[list[TrainRow], dict[str, Inputs], tuple[int, int]]:
    """Return rows that fill the micro-batches, with their inputs by row id, and the image grid."""
    shape = SHAPES[args.shape[0]]
    # A screenshot of 1280 x 704 is 44 x 80 patches, 880 tokens; two of them and some text.
    grid = (44, 80) if shape.row_tokens >= 2048 else (8, 8)
    made = [
        make_row(
            index,
            num_tokens=shape.row_tokens,
            num_trainable=min(args.trainable, shape.row_tokens // 4),
            grid=grid,
            num_images=2 if args.kind[0] == "image" else 0,
        )
        for index in range(args.micro_batches * max(1, args.tokens // shape.row_tokens))
    ]
    return [row for row, _ in made], {row.row_id: inputs for row, inputs in made}, grid


def build(args: argparse.Namespace) -> Any:
    """Build the model on the device with random weights, float32."""
    torch.manual_seed(0)
    config = config_of(SHAPES[args.shape[0]])
    if args.variant == "actor_packed":
        use_packed_attention(config)
    with torch.device(args.device):
        return Qwen3VLForConditionalGeneration(config).float()


def collate_from(inputs: dict[str, Inputs], layout: Any = "padded") -> Any:
    """Return a collate over prepared inputs."""

    def collate(rows: Sequence[TrainRow]) -> Batch:
        return collate_model_inputs(rows, [inputs[row.row_id] for row in rows], layout=layout)

    return collate


def actor_step(args: argparse.Namespace, model: Any, rows: list[TrainRow], inputs: Any) -> Any:
    """Return a function that runs one update of the actor."""
    actor = FSDPActor(
        model,
        ActorConfig(
            optimizer=OptimizerConfig(lr=1e-6, is_state_offloaded=args.offload),
            frozen_modules=tuple(args.frozen),
            loss=LossConfig(masked_token_ids=(151655, 151656)),
            token_budget=args.tokens,
            row_layout="packed" if args.variant == "actor_packed" else "padded",
            compute_dtype="bfloat16",
            checkpointed_block_share=0.5 if args.variant.endswith("_half") else 1.0,
            is_compiled="compiled" in args.variant,
        ),
        collate=collate_from(inputs, "packed" if args.variant == "actor_packed" else "padded"),
        device=args.device,
    )
    return lambda: actor.update(rows)


def plain_step(args: argparse.Namespace, model: Any, rows: list[TrainRow], inputs: Any) -> Any:
    """Return a function that runs one update in a plain loop of transformers."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    collate = collate_from(inputs)

    def accumulate(batch: Batch, num_trainable: int) -> None:
        kwargs = {name: value.to(args.device) for name, value in batch.kwargs.items()}
        ids = kwargs["input_ids"]
        trainable = torch.zeros(ids.numel(), dtype=torch.bool, device=args.device)
        trainable[batch.token_positions.to(args.device)] = True
        trainable = trainable.view(ids.shape)[:, 1:]
        with torch.autocast(torch.device(args.device).type, dtype=torch.bfloat16):
            logits = model(**kwargs, use_cache=False).logits
        # Without this the plain loop runs out of memory: float32 log-probs one row at a time.
        logprobs = torch.stack(
            [
                -torch.nn.functional.cross_entropy(line[:-1].float(), labels[1:], reduction="none")
                for line, labels in zip(logits, ids, strict=True)
            ]
        )
        constant = torch.full_like(logprobs, -11.9)
        tokens = PolicyBatch(
            current_logprobs=logprobs,
            proximal_logprobs=logprobs.detach(),
            behavior_logprobs=constant,
            advantages=torch.ones_like(logprobs),
            mask=trainable,
        )
        output = policy_loss(tokens, denominator=float(num_trainable))
        output.loss.backward()

    def step() -> None:
        count = -(-len(rows) // args.micro_batches)
        num_trainable = sum(row.num_trainable_tokens for row in rows)
        for start in range(0, len(rows), count):
            accumulate(collate(rows[start : start + count]), num_trainable)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def attention_of(args: argparse.Namespace) -> contextlib.AbstractContextManager[object]:
    """Return the order of attention kernels in which the case runs."""
    if not args.variant.endswith("_cudnn"):
        return contextlib.nullcontext()
    order = [
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.MATH,
    ]
    return sdpa_kernel(order, set_priority=True)


def run_case(args: argparse.Namespace) -> dict[str, Any]:
    """Run one case in this process and return its figures."""
    rows, inputs, grid = rows_of(args)
    model = build(args)
    flops = useful_flops(model, SHAPES[args.shape[0]], rows, grid)
    num_parameters = sum(p.numel() for p in model.parameters())
    make = plain_step if args.variant == "plain" else actor_step
    step = make(args, model, rows, inputs)
    is_cuda = args.device.startswith("cuda")

    def timed() -> float:
        started = time.perf_counter()
        with attention_of(args):
            step()
        if is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - started

    first = timed()
    second = timed()
    if is_cuda:
        torch.cuda.reset_peak_memory_stats()
    seconds = sorted(timed() for _ in range(args.steps))
    median = statistics.median(seconds)
    tokens = sum(row.cost_tokens for row in rows)
    return {
        "shape": args.shape[0],
        "kind": args.kind[0],
        "variant": args.variant,
        "num_parameters": num_parameters,
        "is_offloaded": args.offload,
        "frozen": args.frozen,
        "tokens": tokens,
        "trainable_tokens": sum(row.num_trainable_tokens for row in rows),
        "micro_batches": args.micro_batches,
        "first_step_s": first,
        "second_step_s": second,
        "step_s": median,
        "step_min_s": seconds[0],
        "step_max_s": seconds[-1],
        "tokens_per_s": tokens / median,
        "model_flop_utilisation": flops / median / PEAK_FLOPS if is_cuda else None,
        "peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30 if is_cuda else None,
        "torch": torch.__version__,
    }


def spawn_case(args: argparse.Namespace, shape: str, kind: str, variant: str) -> dict[str, Any]:
    """Run one case in a process of its own; a case that fails says so in its line."""
    command = [sys.executable, __file__, "--case", "--shape", shape, "--kind", kind]
    command += ["--variant", variant, "--tokens", str(args.tokens), "--steps", str(args.steps)]
    command += ["--trainable", str(args.trainable), "--device", args.device]
    command += ["--micro-batches", str(args.micro_batches), "--frozen", *args.frozen]
    command += ["--offload"] if args.offload else []
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=args.case_limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return {"shape": shape, "kind": kind, "variant": variant, "error": "time limit"}
    if done.returncode:
        print(done.stderr[-3000:], file=sys.stderr)
        last = done.stderr.strip().splitlines()[-1:]
        return {"shape": shape, "kind": kind, "variant": variant, "error": "".join(last)[:300]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Run all cases, print a line for each, and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", nargs="+", default=["2b", "4b"], choices=sorted(SHAPES))
    parser.add_argument("--kind", nargs="+", default=["text", "image"], choices=["text", "image"])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--variant", default="actor", choices=VARIANTS)
    parser.add_argument("--tokens", type=int, default=16384, help="tokens of a micro-batch")
    parser.add_argument("--micro-batches", type=int, default=4, help="of an optimizer step")
    parser.add_argument("--trainable", type=int, default=256, help="trainable tokens of a row")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--offload", action="store_true", help="AdamW's averages in host memory")
    parser.add_argument("--frozen", nargs="*", default=[], help="prefixes such as model.visual")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--case-limit-s", type=float, default=180.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--case", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(run_case(args)))
        return
    results: list[dict[str, Any]] = []
    for shape in args.shape:
        for kind in args.kind:
            for variant in args.variants:
                result = spawn_case(args, shape, kind, variant)
                results.append(result)
                print(json.dumps(result), flush=True)
                if args.json:
                    args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
