"""One update: proximal log-probs, mini-batches by epochs, optimizer steps, metrics.

Invariants:

* The proximal policy is the policy at the start of the update. Log-probs of the first mini-batch
  need no forward pass of their own: nothing has changed when its turn comes.
* Rows stay on their rank in every epoch, so proximal log-probs never travel.
* Every rank runs the same sequence of collectives whatever its rows hold: micro-batch counts and
  kinds are planned, and a failure before a collective is agreed by all ranks first.
* Metrics speak of the optimizer steps that were taken; a skipped one is counted and adds nothing.

Called by `FSDPActor.update`, on every rank with the same rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from awrl_trainer.config import ActorConfig
from awrl_trainer.micro_step import MicroTensors, prepare_micro_batch
from awrl_trainer.optimizer import SteppedOptimizer, StepResult
from awrl_trainer.policy_loss import micro_batch_loss
from awrl_trainer.policy_module import PolicyModule
from awrl_trainer.ranks import (
    gathered,
    merge_over_ranks,
    require_same_everywhere,
    run_or_fail_together,
)
from awrl_trainer.rows import Collate, TrainRow, check_rows, check_token_ids
from awrl_trainer.update_plan import (
    MicroBatch,
    MiniBatch,
    epoch_order,
    plan_mini_batches,
    plan_ranks,
    rows_digest,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateResult:
    """What an update did, equal on every rank."""

    version: int
    """Version of the weights now: that from before when every step was skipped."""
    metrics: dict[str, float]
    """For reports only."""


@dataclass(kw_only=True, slots=True)
class UpdateTally:
    """What an update collects on its way: parts and losses of steps that were taken."""

    parts: list[Mapping[str, Tensor | float]] = field(
        default_factory=list[Mapping[str, "Tensor | float"]]
    )
    losses: list[Tensor] = field(default_factory=list[Tensor])
    steps: list[StepResult] = field(default_factory=list[StepResult])
    seconds: dict[str, float] = field(default_factory=dict[str, float])


class UpdateRunner:
    """Runs updates of one rank; holds no state between them.

    Args:
        reference: The frozen reference, sharded alike; None without a KL term.
    """

    def __init__(
        self,
        *,
        policy: PolicyModule,
        reference: PolicyModule | None,
        optimizer: SteppedOptimizer,
        collate: Collate,
        config: ActorConfig,
        device: torch.device,
        group: dist.ProcessGroup,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._policy = policy
        self._reference = reference
        self._optimizer = optimizer
        self._collate = collate
        self._config = config
        self._device = device
        self._group = group
        self._clock = clock

    def run(self, rows: Sequence[TrainRow], version: int) -> dict[str, float]:
        """Update the policy on rows and return metrics, equal on every rank.

        Args:
            rows: All rows, the same on every rank.

        Raises:
            BatchError: On every rank; see `FSDPActor.update`.
        """
        started = self._clock()
        self._agree(rows, version, is_update=True)
        self._optimizer.zero_grad()
        tally = UpdateTally()
        mini_batches = plan_mini_batches(
            rows,
            version,
            config=self._config,
            rank=dist.get_rank(self._group),
            num_ranks=dist.get_world_size(self._group),
        )
        proximal: dict[int, list[Tensor]] = {}
        if self._needs_proximal_pass():
            with self._timed(tally, "proximal"):
                for index, mini_batch in enumerate(mini_batches[1:], start=1):
                    proximal[index] = self._proximal_pass(rows, mini_batch, tally)
        for epoch in range(self._config.num_epochs):
            order = epoch_order(len(mini_batches), version, epoch, seed=self._config.seed)
            for index in order:
                current = self._mini_step(
                    rows, mini_batches[index], proximal.get(index), version, tally
                )
                proximal.setdefault(index, current)
        metrics = self._metrics(rows, version, tally)
        metrics["time/update_s"] = self._clock() - started
        return metrics

    def logprobs(self, rows: Sequence[TrainRow], version: int) -> list[np.ndarray]:
        """Return the current log-probs of every row's trainable tokens, in the rows' order.

        Every rank computes all rows; meant for parity checks.

        Raises:
            BatchError: On every rank, when one was given other rows.
        """
        self._agree(rows, version, is_update=False)
        plan = plan_ranks(rows, self._config)[0]
        results: list[np.ndarray] = [np.empty(0, dtype=np.float32)] * len(rows)
        for micro_batch in plan:
            micro = self._prepare(rows, micro_batch, UpdateTally())
            with torch.no_grad():
                values = self._policy(micro.kwargs, micro.sources, micro.labels).logprobs
            counts = [rows[index].num_trainable_tokens for index in micro_batch.row_indices]
            for index, part in zip(micro_batch.row_indices, values.split(counts), strict=True):
                results[index] = part.cpu().numpy()
        return results

    def _agree(self, rows: Sequence[TrainRow], version: int, *, is_update: bool) -> None:
        """Return when every rank has found the rows right, and the same as every other."""
        state = repr((version, self._optimizer.num_steps, self._config, is_update))

        def look() -> bytes:
            check_token_ids(rows, self._policy.num_token_ids)
            if is_update:
                check_rows(
                    rows,
                    version=version,
                    masked_token_ids=self._config.loss.masked_token_ids,
                    needs_versions=self._config.loss.proximal_method in ("loglinear", "metrics"),
                )
            return rows_digest(rows, state)

        digest = run_or_fail_together(
            look, self._group, self._device, what="the check of rows", advice="Mend the rows."
        )
        require_same_everywhere(digest, self._group)

    def _needs_proximal_pass(self) -> bool:
        return self._config.loss.proximal_method in ("recompute", "metrics")

    def _proximal_pass(
        self, rows: Sequence[TrainRow], mini_batch: MiniBatch, tally: UpdateTally
    ) -> list[Tensor]:
        values: list[Tensor] = []
        for micro_batch in mini_batch.micro_batches:
            micro = self._prepare(rows, micro_batch, tally)
            with torch.no_grad():
                values.append(self._policy(micro.kwargs, micro.sources, micro.labels).logprobs)
        return values

    def _mini_step(
        self,
        rows: Sequence[TrainRow],
        mini_batch: MiniBatch,
        proximal: list[Tensor] | None,
        version: int,
        tally: UpdateTally,
    ) -> list[Tensor]:
        """Accumulate gradients over micro-batches and step; return log-probs before the step."""
        before: list[Tensor] = []
        parts: list[Mapping[str, Tensor | float]] = []
        loss = torch.zeros((), dtype=torch.float64, device=self._device)
        for index, micro_batch in enumerate(mini_batch.micro_batches):
            micro = self._prepare(rows, micro_batch, tally)
            share, logprobs, metrics = self._micro_step(
                micro,
                None if proximal is None else proximal[index],
                mini_batch.denominator,
                version,
                tally,
            )
            loss += share.double()
            before.append(logprobs)
            parts.append(metrics)
        with self._timed(tally, "optimizer"):
            tally.steps.append(self._optimizer.step())
        if not tally.steps[-1].is_skipped:
            tally.losses.append(loss)
            tally.parts += parts
        return before

    def _micro_step(
        self,
        micro: MicroTensors,
        snapshot: Tensor | None,
        denominator: float,
        version: int,
        tally: UpdateTally,
    ) -> tuple[Tensor, Tensor, Mapping[str, Tensor | float]]:
        reference = None
        if self._reference is not None:
            with self._timed(tally, "reference"), torch.no_grad():
                reference = self._reference(micro.kwargs, micro.sources, micro.labels).logprobs
        with self._timed(tally, "forward"):
            current = self._policy(micro.kwargs, micro.sources, micro.labels)
            loss, metrics = micro_batch_loss(
                current,
                micro,
                snapshot=snapshot,
                reference_logprobs=reference,
                version=version,
                denominator=denominator,
                config=self._config.loss,
            )
        with self._timed(tally, "backward"):
            loss.backward()
        return loss.detach(), current.logprobs.detach(), metrics

    def _prepare(
        self, rows: Sequence[TrainRow], micro_batch: MicroBatch, tally: UpdateTally
    ) -> MicroTensors:
        with self._timed(tally, "collate"):
            return run_or_fail_together(
                lambda: prepare_micro_batch(
                    rows,
                    micro_batch.row_indices,
                    is_dummy=micro_batch.is_dummy,
                    collate=self._collate,
                    device=self._device,
                ),
                self._group,
                self._device,
                what="collate",
                advice="See that rank's log; this optimizer step was not taken.",
            )

    def _metrics(
        self, rows: Sequence[TrainRow], version: int, tally: UpdateTally
    ) -> dict[str, float]:
        metrics = merge_over_ranks(tally.parts, self._group)
        taken = [step for step in tally.steps if not step.is_skipped]
        if taken:
            loss = float(torch.stack(tally.losses).mean())
            metrics["loss/value"] = sum(gathered(loss, self._group))
            metrics["optimizer/grad_norm"] = float(np.mean([step.grad_norm for step in taken]))
        metrics["optimizer/lr"] = tally.steps[-1].lr
        metrics["optimizer/num_steps"] = float(len(taken))
        metrics["optimizer/num_skipped_steps"] = float(len(tally.steps) - len(taken))
        metrics["batch/num_rows"] = float(len(rows))
        metrics["batch/num_tokens"] = float(sum(row.cost_tokens for row in rows))
        metrics["batch/num_trainable_tokens"] = float(sum(r.num_trainable_tokens for r in rows))
        metrics |= {f"time/{name}_s": value for name, value in tally.seconds.items()}
        return metrics | off_policyness_metrics(rows, version)

    @contextmanager
    def _timed(self, tally: UpdateTally, name: str) -> Generator[None]:
        started = self._clock()
        yield
        tally.seconds[name] = tally.seconds.get(name, 0.0) + self._clock() - started


def off_policyness_metrics(
    rows: Sequence[TrainRow], current_version: int, *, num_bins: int = 8
) -> dict[str, float]:
    """Return how old the trainable tokens are, over all whose versions are known and not negative.

    Args:
        rows: The rows of the update, those of all ranks.
        current_version: Version at the start of the update.
        num_bins: Bins 0, 1, ..., the last one open to the right.

    Returns:
        `off_policyness/share_K` of each bin, `off_policyness/mean` and `off_policyness/max`; empty
        when no row knows its versions.
    """
    known = [row.versions[row.loss_mask] for row in rows if row.versions is not None]
    versions = np.concatenate(known) if known else np.empty(0, dtype=np.int64)
    ages = current_version - versions[versions >= 0]
    if not len(ages):
        return {}
    counts = np.bincount(np.clip(ages, 0, num_bins - 1), minlength=num_bins)
    shares = {f"off_policyness/share_{k}": n / len(ages) for k, n in enumerate(counts.tolist())}
    return shares | {
        "off_policyness/mean": float(ages.mean()),
        "off_policyness/max": float(ages.max()),
    }
