r"""`webrl train` whose trainer comes late: the pool is as far ahead as the staleness bound lets it be.

    python benchmarks/learning/ahead.py --config laptop rollout.max_head_offpolicyness=8 run_dir=runs/eta8
    python benchmarks/learning/ahead.py --config laptop rollout.max_head_offpolicyness=8 \
        actor.use_decoupled_loss=false actor.recompute_logprob=false run_dir=runs/eta8-coupled

On two cores the trainer waits for browsers, so that trained tokens are hardly ever behind, whatever
eta allows. Here each batch is taken only when no further episode may start and none runs: the batch
is then eta versions behind, as with a trainer that is slower than its rollouts. Learning per step is
what such a run shows; its time is not.
"""

from __future__ import annotations

import asyncio
import sys

from awrl_rollout import RolloutBatch
from webrl.cli.main import main
from webrl.rollout.batch_source import EverlastingRollouts

LOOK_S = 0.02
"""Between two looks at the pool."""

_prepare_batch = EverlastingRollouts.prepare_batch


async def _when_full(
    self: EverlastingRollouts, num_episodes: int, *, timeout_s: float
) -> RolloutBatch:
    async with asyncio.timeout(timeout_s):
        while True:
            statistics = self.controller.statistics()
            is_full = statistics.num_ready_episodes >= num_episodes
            if is_full and statistics.blocked_by and not statistics.num_in_flight:
                break
            await asyncio.sleep(LOOK_S)
    return await _prepare_batch(self, num_episodes, timeout_s=timeout_s)


if __name__ == "__main__":
    EverlastingRollouts.prepare_batch = _when_full
    sys.exit(main(["train", *sys.argv[1:]]))
