"""Writes a policy with the blocks of Qwen3-VL-2B, random weights, warmed up on synthetic pages.

    python benchmarks/one_gpu/wide_policy.py OUT [--device cuda] [--updates 120]

28 text blocks of 2048 and 24 vision blocks of 1024, 1.75 B parameters, in bfloat16. The tokenizer is
that of the tiny policy (576 tokens in place of 151,936): a random policy over a real vocabulary never
writes an action, so no group would ever differ in reward. `--small` makes a few narrow blocks.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from webrl.policy import InitPolicyConfig, WarmupConfig, init_policy, load_policy


def main() -> None:
    """Write the policy and say how large it is and what the warm-up came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--updates", type=int, default=120)
    parser.add_argument("--small", action="store_true", help="a few narrow blocks, for a look")
    options = parser.parse_args()
    shrink = 8 if options.small else 1
    torch.backends.cuda.matmul.allow_tf32 = True
    start = time.perf_counter()
    report = init_policy(
        options.out,
        InitPolicyConfig(
            hidden_size=2048 // shrink,
            num_layers=28 // shrink,
            num_heads=16 // shrink,
            intermediate_size=6144 // shrink,
            vision_hidden_size=1024 // shrink,
            vision_depth=24 // shrink,
            vision_heads=16 // shrink,
            vision_intermediate_size=4096 // shrink,
            merge=2,
            max_pixels=160 * 224,
            initializer_range=0.02,
            warmup=WarmupConfig(num_updates=options.updates, batch_size=32, learning_rate=2e-4),
        ),
        device=options.device,
    )
    model = load_policy(options.out, torch.bfloat16)
    for stale in options.out.glob("*.safetensors*"):
        stale.unlink()
    model.save_pretrained(options.out)
    count = sum(weight.numel() for weight in model.parameters())
    print(
        f"{count / 1e9:.3f} B parameters, warm-up loss {report.loss:.3f} nats per token, "
        f"{time.perf_counter() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
