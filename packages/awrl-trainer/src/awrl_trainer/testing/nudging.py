"""Updates without a forward or a backward pass, for rehearsals of everything around them.

Invariant: rows, mini-batches, epochs, micro-batches, optimizer steps and collectives are those of a
real update of the same rows; each update changes every weight, alike on every rank, by so much
that its bfloat16 is another one too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from awrl_trainer.ranks import run_or_fail_together
from awrl_trainer.rows import TrainRow
from awrl_trainer.update import UpdateRunner, UpdateTally
from awrl_trainer.update_plan import MiniBatch

_GRADIENT = 1e-3
"""Of every weight. What the optimizer makes of it may be too little to be seen in bfloat16."""

_FACTOR, _SUMMAND = 1.02, 2**-6
"""What an update makes of a weight: more than half a step of bfloat16, zeros included."""


class NudgingRunner(UpdateRunner):
    """Runs updates in which nothing is computed."""

    def run(self, rows: Sequence[TrainRow], version: int) -> dict[str, float]:
        """Take the steps of an update, and change every weight."""
        metrics = super().run(rows, version)
        with torch.no_grad():
            for parameter in self._policy.parameters():
                if parameter.requires_grad:
                    parameter.mul_(_FACTOR).add_(_SUMMAND)
        return metrics

    def _proximal_pass(
        self, rows: Sequence[TrainRow], mini_batch: MiniBatch, tally: UpdateTally
    ) -> list[Tensor]:
        """Return no log-probs: nobody reads them."""
        return []

    def _mini_step(
        self,
        rows: Sequence[TrainRow],
        mini_batch: MiniBatch,
        proximal: list[Tensor] | None,
        version: int,
        tally: UpdateTally,
    ) -> list[Tensor]:
        """Collate every micro-batch, and step with one gradient for all weights."""
        for micro_batch in mini_batch.micro_batches:
            own = [rows[index] for index in micro_batch.row_indices]
            with self._timed(tally, "collate"):
                run_or_fail_together(
                    lambda own=own: self._collate(own),
                    self._group,
                    self._device,
                    what="collate",
                    advice="See that rank's log; this optimizer step was not taken.",
                )
        for parameter in self._policy.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.full_like(parameter, _GRADIENT)
        with self._timed(tally, "optimizer"):
            tally.steps.append(self._optimizer.step())
        tally.losses.append(torch.zeros((), dtype=torch.float64, device=self._device))
        return []
