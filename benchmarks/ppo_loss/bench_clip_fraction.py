"""Clip fraction of the decoupled and of the coupled loss, on the same rollouts, by staleness.

    light python benchmarks/ppo_loss/bench_clip_fraction.py > clip_fraction.json

The laptop's tiny Qwen3-VL, warmed up on synthetic button pages, clicks on such pages (one step;
reward 1 for a hit). For each staleness `s`, every update is trained, with the decoupled loss, on
episodes that the policy of `s` updates before has sampled; the coupled loss is evaluated beside it
on the same tensors, without training. Counted are updates whose rollouts really are `s` old.
"""

import argparse
import copy
import json
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from awrl_ppo_loss import (
    IGNORED_LABEL,
    decoupled_ppo_loss,
    group_normalized_advantages,
    logprobs_from_logits,
    merge_metrics,
    ppo_loss,
)
from torch import Tensor
from webrl.policy import (
    ActionGrid,
    InitPolicyConfig,
    PageFactory,
    PolicyProcessor,
    SyntheticPage,
    WarmupConfig,
    init_policy,
    load_policy,
)
from webrl.policy.warmup import SupervisedBatch, supervised_batch

ACTION_TOKENS = 4
"""Of a click: the verb, x, y, the end. Longer samples are cut and fail."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How much is sampled and trained."""

    staleness: tuple[int, ...]
    updates: int
    pages: int
    siblings: int
    mini_batches: int
    learning_rate: float
    warmup_updates: int


@dataclass(frozen=True)
class Rollouts:
    """Episodes of one update: inputs, and what the behavior policy did."""

    batch: SupervisedBatch
    behavior: Tensor
    """`[B, ACTION_TOKENS]` log-probs."""
    rewards: list[float]
    groups: list[int]


class Policy:
    """A model with its processor: logits and samples of actions."""

    def __init__(self, path: Path) -> None:
        self.processor = PolicyProcessor.from_pretrained(path)
        self.model = load_policy(path, torch.float32)

    def action_logits(self, batch: SupervisedBatch, rows: slice = slice(None)) -> Tensor:
        """Return the logits that predict the action tokens, `[B, ACTION_TOKENS, V]`."""
        per_row = len(batch.pixel_values) // len(batch.input_ids)
        start, stop, _ = rows.indices(len(batch.input_ids))
        logits = self.model(
            input_ids=batch.input_ids[rows],
            attention_mask=batch.attention_mask[rows],
            position_ids=batch.position_ids[:, rows],
            pixel_values=batch.pixel_values[start * per_row : stop * per_row],
            image_grid_thw=batch.image_grid_thw[rows],
            mm_token_type_ids=batch.mm_token_type_ids[rows],
            use_cache=False,
        ).logits
        first = int(batch.action_mask[0].int().argmax())
        return logits[:, first - 1 : first - 1 + ACTION_TOKENS]

    def logprobs(self, batch: SupervisedBatch, rows: slice = slice(None)) -> Tensor:
        """Return the log-probs of the action tokens, `[B, ACTION_TOKENS]`."""
        first = int(batch.action_mask[0].int().argmax())
        labels = batch.input_ids[rows, first : first + ACTION_TOKENS]
        is_action = batch.action_mask[rows, first : first + ACTION_TOKENS]
        return logprobs_from_logits(
            self.action_logits(batch, rows),
            labels.masked_fill(~is_action, IGNORED_LABEL),
            masked_token_ids=self.processor.masked_token_ids,
        )

    @torch.no_grad()
    def sample(self, pages: list[SyntheticPage], generator: torch.Generator) -> SupervisedBatch:
        """Return prompts with sampled actions; what follows an end token is no action."""
        batch = supervised_batch(self.processor, pages, [page.solutions[0] for page in pages])
        first = int(batch.action_mask[0].int().argmax())
        masked = torch.tensor(self.processor.masked_token_ids)
        has_ended = torch.zeros(len(pages), dtype=torch.bool)
        for offset in range(ACTION_TOKENS):
            logits = self.action_logits(batch)[:, offset].index_fill(1, masked, float("-inf"))
            chosen = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
            batch.input_ids[:, first + offset] = chosen
            batch.action_mask[:, first + offset] = ~has_ended
            has_ended |= chosen == self.processor.eos_token_id
        return batch

    def actions(self, batch: SupervisedBatch) -> list[str]:
        """Return the text of every action."""
        end = self.processor.eos_token_id
        texts: list[str] = []
        for row, mask in zip(batch.input_ids, batch.action_mask, strict=True):
            texts.append(self.processor.decode([i for i in row[mask].tolist() if i != end]))
        return texts


def roll_out(policy: Policy, pages: PageFactory, settings: Settings, seed: int) -> Rollouts:
    drawn = [pages.draw() for _ in range(settings.pages)]
    rows = [page for page in drawn for _ in range(settings.siblings)]
    batch = policy.sample(rows, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        behavior = policy.logprobs(batch)
    hits = zip(policy.actions(batch), rows, strict=True)
    rewards = [float(action in page.solutions) for action, page in hits]
    groups = [i // settings.siblings for i in range(len(rows))]
    return Rollouts(batch, behavior, rewards, groups)


def update(
    policy: Policy, rollouts: Rollouts, optimizer: torch.optim.Optimizer, settings: Settings
) -> dict[str, list[dict[str, float]]]:
    """Train one update; return the metrics of both losses on every mini-batch."""
    first = int(rollouts.batch.action_mask[0].int().argmax())
    mask = rollouts.batch.action_mask[:, first : first + ACTION_TOKENS]
    advantages, _ = group_normalized_advantages(rollouts.rewards, rollouts.groups)
    per_token = advantages[:, None].expand(mask.shape).contiguous()
    with torch.no_grad():
        proximal = policy.logprobs(rollouts.batch)
    metrics: dict[str, list[dict[str, float]]] = {"decoupled": [], "coupled": []}
    size = len(mask) // settings.mini_batches
    for start in range(0, size * settings.mini_batches, size):
        rows = slice(start, start + size)
        current = policy.logprobs(rollouts.batch, rows)
        known = (rollouts.behavior[rows], per_token[rows], mask[rows])
        out = decoupled_ppo_loss(current, proximal[rows], *known, behav_imp_weight_cap=5.0)
        metrics["decoupled"].append({key: float(value) for key, value in out.metrics.items()})
        coupled = ppo_loss(current.detach(), *known).metrics
        metrics["coupled"].append({key: float(value) for key, value in coupled.items()})
        optimizer.zero_grad()
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
    return metrics


def run(path: Path, staleness: int, settings: Settings) -> dict[str, float]:
    policy, behavior = Policy(path), Policy(path)
    optimizer = torch.optim.AdamW(
        policy.model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    pages = PageFactory(ActionGrid(), ("button",), np.random.default_rng(7))
    versions: deque[dict[str, Tensor]] = deque(maxlen=staleness + 1)
    collected: dict[str, list[dict[str, float]]] = {"decoupled": [], "coupled": []}
    rewards: list[float] = []
    for number in range(staleness + settings.updates):
        versions.append(copy.deepcopy(policy.model.state_dict()))
        behavior.model.load_state_dict(versions[0])
        rollouts = roll_out(behavior, pages, settings, seed=number)
        metrics = update(policy, rollouts, optimizer, settings)
        if number >= staleness:
            rewards += rollouts.rewards
            for name, values in metrics.items():
                collected[name] += values
    decoupled, coupled = (merge_metrics(collected[name]) for name in ("decoupled", "coupled"))
    return {
        "clip_decoupled": decoupled["clip/fraction"],
        "clip_coupled": coupled["clip/fraction"],
        "decoupled_over_coupled": decoupled["clip/fraction"] / max(coupled["clip/fraction"], 1e-9),
        "weight_max": decoupled["staleness_ratio/max"],
        "ess_fraction": decoupled["staleness_ratio/ess_fraction"],
        "capped_fraction": decoupled["staleness_ratio/capped_fraction"],
        "reward_mean": sum(rewards) / len(rewards),
    }


def main(arguments: list[str] | None = None) -> dict[str, dict[str, float]]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2, 4, 8])
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("--pages", type=int, default=16)
    parser.add_argument("--siblings", type=int, default=8)
    parser.add_argument("--mini-batches", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--warmup-updates", type=int, default=60)
    options = vars(parser.parse_args(arguments))
    settings = Settings(**{**options, "staleness": tuple(options["staleness"])})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        warmup = WarmupConfig(num_updates=settings.warmup_updates, page_kinds=("button",))
        init_policy(path, InitPolicyConfig(warmup=warmup))
        return {f"staleness {s}": run(path, s, settings) for s in settings.staleness}


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
