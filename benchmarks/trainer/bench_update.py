"""One update on a CPU beside the same model in a plain loop: what the actor adds, in one run.

Run: `pytest benchmarks/trainer --benchmark-json=F`. The plain loop does one forward and one backward pass
over one padded batch, PPO's ratio against behavior log-probs, and AdamW; the actor the same on packed
micro-batches, after a forward pass for the proximal log-probs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from awrl_trainer import ActorConfig, FSDPActor, OptimizerConfig, TrainRow, collate_text
from awrl_trainer.testing import TinyPolicy
from pytest_benchmark.fixture import BenchmarkFixture

VOCABULARY, HIDDEN, BLOCKS = 8192, 256, 8
NUM_ROWS, ROW_TOKENS, TRAINED = 32, 256, 64
ROUNDS = 7


def rows_of(seed: int) -> list[TrainRow]:
    """Return rows of equal length whose last tokens are trained on."""
    draw = np.random.default_rng(seed)
    mask = np.arange(ROW_TOKENS) >= ROW_TOKENS - TRAINED
    return [
        TrainRow(
            input_ids=draw.integers(0, VOCABULARY, ROW_TOKENS),
            loss_mask=mask,
            advantages=float(draw.choice([-1.0, 1.0])),
            behavior_logprobs=np.full(ROW_TOKENS, -9.0, dtype=np.float32),
        )
        for _ in range(NUM_ROWS)
    ]


def plain_update(model: TinyPolicy, optimizer: torch.optim.Optimizer, rows: list[TrainRow]) -> None:
    """Run the plain loop once."""
    ids = torch.from_numpy(np.stack([row.input_ids for row in rows]))
    hidden = model.backbone(input_ids=ids)[:, -TRAINED - 1 : -1]
    logprobs = torch.log_softmax(model.head(hidden), -1).gather(-1, ids[:, -TRAINED:, None])[..., 0]
    advantages = torch.tensor([row.advantages for row in rows])[:, None]
    ratio = torch.exp(logprobs + 9.0)
    loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def seconds(operation: Callable[[], object]) -> float:
    """Return how long one call takes."""
    started = time.perf_counter()
    operation()
    return time.perf_counter() - started


def test_update_beside_a_plain_loop(benchmark: BenchmarkFixture) -> None:
    torch.set_num_threads(1)
    sizes = {"vocabulary_size": VOCABULARY, "hidden_size": HIDDEN, "num_blocks": BLOCKS}
    config = ActorConfig(optimizer=OptimizerConfig(lr=1e-5), token_budget=NUM_ROWS * ROW_TOKENS)
    actor = FSDPActor(TinyPolicy(**sizes), config, collate=collate_text)
    plain = TinyPolicy(**sizes)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-5)
    rows = rows_of(0)
    samples: dict[str, list[float]] = {"plain": [], "actor": []}

    def one_round() -> None:
        samples["plain"].append(seconds(lambda: plain_update(plain, optimizer, rows)))
        samples["actor"].append(seconds(lambda: actor.update(rows)))

    benchmark.pedantic(one_round, rounds=ROUNDS, warmup_rounds=1)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    benchmark.extra_info.update(
        {f"{name}_ms": 1e3 * value for name, value in medians.items()},
        tokens_per_s=NUM_ROWS * ROW_TOKENS / medians["actor"],
        actor_over_plain=medians["actor"] / medians["plain"],
    )
    assert actor.version > 0
