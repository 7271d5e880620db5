"""A search for a state in which nothing runs, capacity is 0 and the batch cannot fill."""

from __future__ import annotations

import random

from awrl_rollout import (
    ControllerConfig,
    EpisodeContext,
    EpisodeFaultError,
    EpisodeRequest,
    EpisodeResult,
    FaultKind,
    LocalWorker,
    RolloutController,
    VirtualClock,
    WorkflowExecutor,
)
from awrl_rollout.testing import make_group
from awrl_staleness import StalenessConfig, StalenessManager
from hypothesis import given, settings
from hypothesis import strategies as st

NUM_STEPS = 6
PATIENCE_S = 2000.0
"""Virtual seconds: a batch that takes longer is starved."""


class World:
    """Random tasks, durations, faults and rejections, all from one seed."""

    def __init__(self, seed: int, sizes: list[int], fault_share: float, filter_share: float):
        self.rng = random.Random(seed)
        self.sizes = sizes
        self.fault_share = fault_share
        self.filter_share = filter_share
        self.num_groups = 0

    def source(self) -> list[EpisodeRequest]:
        size = self.sizes[self.num_groups % len(self.sizes)]
        self.num_groups += 1
        return make_group(f"g{self.num_groups}", size)

    async def workflow(
        self, request: EpisodeRequest, context: EpisodeContext
    ) -> EpisodeResult | None:
        await context.clock.sleep(self.rng.lognormvariate(0.0, 1.0))
        if self.rng.random() < self.fault_share:
            raise EpisodeFaultError(FaultKind.BROWSER_LOST, "lost")
        if self.rng.random() < self.filter_share:
            return None
        return EpisodeResult(is_success=True, reward=float(self.rng.random() < 0.7))

    def accept(self, records: object) -> str | None:
        return "filtered" if self.rng.random() < self.filter_share else None


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_every_batch_fills_whatever_the_numbers(data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, 8), label="batch")
    eta = data.draw(st.integers(0, 2), label="eta")
    limits = StalenessConfig(
        max_concurrent=data.draw(st.integers(1, 10), label="concurrent"),
        consumer_batch_size=batch,
        max_off_policyness=eta,
    )
    largest = min(5, limits.budget)
    world = World(
        data.draw(st.integers(0, 10_000), label="seed"),
        data.draw(st.lists(st.integers(1, largest), min_size=1, max_size=3), label="sizes"),
        data.draw(st.sampled_from([0.0, 0.2, 0.5]), label="faults"),
        data.draw(st.sampled_from([0.0, 0.3]), label="filtered"),
    )
    config = ControllerConfig(
        on_overrun=data.draw(st.sampled_from(["drop", "wait"]), label="overrun"),
        overrun_deadline_s=100.0,
        max_fault_share=None,
        max_refills=data.draw(st.integers(0, 2), label="refills"),
        when_incomplete=data.draw(st.sampled_from(["deliver", "drop"]), label="incomplete"),
    )
    num_slots = data.draw(st.integers(1, 6), label="slots")
    skips = data.draw(
        st.lists(st.booleans(), min_size=NUM_STEPS, max_size=NUM_STEPS), label="skips"
    )
    # A trainer that holds several batches needs groups that fill each batch exactly.
    is_even = len(set(world.sizes)) == 1 and batch % world.sizes[0] == 0
    num_ahead = data.draw(st.integers(0, eta if is_even else 0), label="ahead")

    async def main() -> None:
        manager = StalenessManager(limits)
        async with (
            WorkflowExecutor(world.workflow, num_slots=num_slots, clock=clock) as executor,
            RolloutController(
                [LocalWorker(executor)],
                manager,
                source=world.source,
                config=config,
                accept_group=world.accept,
                clock=clock,
            ) as controller,
        ):
            outstanding: list[int] = []
            for is_skipped in skips:
                got = await controller.prepare_batch(batch, timeout_s=PATIENCE_S)
                assert got.num_episodes >= 1
                outstanding.append(got.batch)
                if len(outstanding) <= num_ahead:
                    continue
                await clock.sleep(1.0)
                if is_skipped:
                    controller.release_budget(batches=[outstanding.pop(0)])
                else:
                    controller.advance(manager.version + 1, batches=[outstanding.pop(0)])
            seen = manager.statistics()
            assert max(seen.off_policyness, default=0) <= eta

    clock = VirtualClock()
    clock.run(main())
