"""Time and memory of the loss and of the log-prob paths, as one JSON object on standard output.

Needs torch and, on the path, `awrl_ppo_loss`; nothing else. Compared as well where they import:
liger-kernel and cut-cross-entropy, by the function nearest to a log-prob of given tokens.

    PYTHONPATH=packages/awrl-ppo-loss/src python benchmarks/ppo_loss/losses.py --device cuda
    PYTHONPATH=packages/awrl-ppo-loss/src python benchmarks/ppo_loss/losses.py --device cpu

Every figure is of forward and backward together. Variants take turns within one process, and times
are medians (with the fastest beside them). Peak memory is what the allocator held at most, minus
what it held before the call, so without hidden states and head but with their gradients.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from areal_like import areal_like_loss
from awrl_ppo_loss import PolicyBatch, PolicyLossConfig, policy_loss
from logprob_variants import Sizes, Variant, all_variants
from torch import Tensor, nn

LOSS_TOKENS = (4_096, 65_536)
"""Sizes of a micro-batch at which the loss is compared with that of AReaL."""

CONFIG = PolicyLossConfig(weight_cap=5.0)
"""Decoupled PPO with a cap of the importance weight, without which AReaL does not apply it."""


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def measure(work: dict[str, Callable[[], object]], device: str, repeats: int) -> dict[str, object]:
    """Run the pieces of work in turns; return median and fastest milliseconds of each."""
    for call in work.values():
        for _ in range(2):
            call()
    synchronize(device)
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, call in work.items():
            start = time.perf_counter()
            call()
            synchronize(device)
            times[name].append(1e3 * (time.perf_counter() - start))
    return {
        name: {"median_ms": statistics.median(values), "min_ms": min(values)}
        for name, values in times.items()
    }


def peak_bytes(call: Callable[[], object], device: str) -> int | None:
    """Return the peak of allocated bytes above what was held before; `None` on a CPU."""
    if device == "cpu":
        return None
    synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    synchronize(device)
    return torch.cuda.max_memory_allocated() - before


def bench_logprobs(sizes: Sizes) -> dict[str, object]:
    """Compare the ways to log-probs at one size."""
    generator = torch.Generator(sizes.device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=sizes.device)

    hidden = normal(sizes.tokens, sizes.hidden).to(sizes.dtype).requires_grad_()
    head = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False, device=sizes.device)
    head.to(sizes.dtype)
    labels = torch.randint(
        sizes.vocabulary, (sizes.tokens,), generator=generator, device=sizes.device
    )
    upstream = normal(sizes.tokens)
    variants, missing = all_variants()

    def run(variant: Variant) -> list[Tensor]:
        value = variant.call(hidden, head, labels)
        total = (value.float() * upstream).sum() if value.dim() else value
        return [value.detach(), *torch.autograd.grad(total, (hidden, head.weight))]

    errors: dict[str, object] = {}
    expected = run(variants[0])
    for variant in variants[1:]:
        actual = run(variant)
        if actual[0].dim():
            errors[variant.name] = [
                relative_error(*pair) for pair in zip(actual, expected, strict=True)
            ]
        del actual
    del expected
    peaks = {
        variant.name: peak_bytes(lambda v=variant: run(v), sizes.device) for variant in variants
    }
    work = {variant.name: (lambda v=variant: run(v)) for variant in variants}
    times = measure(work, sizes.device, sizes.repeats)
    return {
        "times": times,
        "peak_bytes": peaks,
        "time_over_naive": ratios(times, "naive"),
        "peak_over_naive": {
            name: peak / naive_peak
            for name, peak in peaks.items()
            if peak is not None and (naive_peak := peaks["naive"])
        },
        "relative_error_of_logprobs_and_gradients_to_naive": errors,
        "not_imported": missing,
    }


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference over the norm, in blocks that keep float32 copies small."""
    difference, size = 0.0, 0.0
    for mine, theirs in zip(actual.split(4096), expected.split(4096), strict=True):
        difference += (mine.float() - theirs.float()).square().sum().item()
        size += theirs.float().square().sum().item()
    return (difference / size) ** 0.5


def ratios(times: dict[str, object], base: str) -> dict[str, float]:
    """Return each median over the base's."""
    medians = {name: value["median_ms"] for name, value in times.items()}  # type: ignore[index]
    return {name: median / medians[base] for name, median in medians.items()}


def bench_losses(sizes: Sizes) -> dict[str, object]:
    """Compare the decoupled loss with the operations of AReaL's, of equal value and gradient."""
    results: dict[str, object] = {}
    for tokens in LOSS_TOKENS:
        generator = torch.Generator(sizes.device).manual_seed(1)
        noise = torch.randn(4, tokens, generator=generator, device=sizes.device)
        proximal = noise[0] - 2
        current = (proximal + 0.1 * noise[1]).requires_grad_()
        behavior = proximal + 0.5 * noise[2]
        mask = torch.rand(tokens, generator=generator, device=sizes.device) < 0.7
        batch = PolicyBatch(
            current_logprobs=current,
            proximal_logprobs=proximal,
            behavior_logprobs=behavior,
            advantages=noise[3],
            mask=mask,
        )

        def areal(batch: PolicyBatch = batch) -> Tensor:
            loss, _ = areal_like_loss(batch, cap=5.0)
            return torch.autograd.grad(loss, batch.current_logprobs)[0]

        def ours(batch: PolicyBatch = batch) -> Tensor:
            checked = PolicyBatch(
                current_logprobs=batch.current_logprobs,
                proximal_logprobs=batch.proximal_logprobs,
                behavior_logprobs=batch.behavior_logprobs,
                advantages=batch.advantages,
                mask=batch.mask,
            )
            loss = policy_loss(checked, CONFIG).loss
            return torch.autograd.grad(loss, batch.current_logprobs)[0]

        def ours_with_metrics(batch: PolicyBatch = batch) -> Tensor:
            out = policy_loss(batch, CONFIG)
            assert out.metrics
            return torch.autograd.grad(out.loss, batch.current_logprobs)[0]

        times = measure(
            {"areal_like": areal, "ours": ours, "ours_with_metrics": ours_with_metrics},
            sizes.device,
            20 * sizes.repeats,
        )
        results[str(tokens)] = {
            "times": times,
            "over_areal_like": ratios(times, "areal_like"),
            "relative_error_of_gradient": relative_error(ours(), areal()),
        }
    return results


def parse(arguments: list[str] | None = None) -> Sizes:
    """Read the command line; a CPU gets a size that it can do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--hidden", type=int)
    parser.add_argument("--vocabulary", type=int)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args(arguments)
    is_cpu = options.device == "cpu"
    return Sizes(
        device=options.device,
        tokens=options.tokens or (512 if is_cpu else 16_384),
        hidden=options.hidden or (256 if is_cpu else 4_096),
        vocabulary=options.vocabulary or (8_192 if is_cpu else 151_936),
        dtype=torch.float32 if is_cpu else torch.bfloat16,
        repeats=options.repeats,
    )


def main(arguments: list[str] | None = None) -> dict[str, object]:
    """Measure everything and return it."""
    sizes = parse(arguments)
    is_cpu = sizes.device == "cpu"
    return {
        "torch": torch.__version__,
        "device": "cpu" if is_cpu else torch.cuda.get_device_name(),
        "threads": torch.get_num_threads(),
        "tokens": sizes.tokens,
        "hidden": sizes.hidden,
        "vocabulary": sizes.vocabulary,
        "dtype": str(sizes.dtype),
        "logprobs": bench_logprobs(sizes),
        "loss": bench_losses(sizes),
    }


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
