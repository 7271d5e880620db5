"""Sites that are down, and a network that is, in front of a real controller in virtual time."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from awrl_rollout import (
    ControllerConfig,
    EpisodeContext,
    EpisodeFaultError,
    EpisodeRecord,
    EpisodeRequest,
    EpisodeResult,
    Fault,
    FaultKind,
    LocalWorker,
    RetryPolicy,
    RolloutController,
    StarvedError,
    VirtualClock,
    WorkflowExecutor,
)
from awrl_rollout.episode import record_of
from awrl_rollout.testing import make_group
from awrl_staleness import StalenessConfig, StalenessManager

GROUP = 4
BATCH = 16
SLOTS = 48
NUM_SITES = 50


class World(msgspec.Struct):
    """Sites in turn, of which some are down, and what a network does to all of them."""

    down: dict[str, FaultKind] = msgspec.field(default_factory=dict[str, FaultKind])
    crash_share: float = 0.0
    outages: list[tuple[float, float]] = msgspec.field(default_factory=list[tuple[float, float]])
    """When the network is down, in seconds."""
    num_sites: int = NUM_SITES
    clock: VirtualClock = msgspec.field(default_factory=VirtualClock)
    rng: random.Random = msgspec.field(default_factory=lambda: random.Random(7))
    num_groups: int = 0
    num_started: int = 0
    ended: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter[tuple[str, str]])

    def source(self) -> list[EpisodeRequest]:
        self.num_groups += 1
        site = f"site-{self.rng.randrange(self.num_sites)}"
        return make_group(f"g{self.num_groups}", GROUP, site=site)

    async def workflow(self, request: EpisodeRequest, context: EpisodeContext) -> EpisodeResult:
        self.num_started += context.attempt == 0
        await context.clock.sleep(1.0 + self.rng.random())
        if any(start_s <= self.clock.time() < end_s for start_s, end_s in self.outages):
            raise EpisodeFaultError(FaultKind.NETWORK_DOWN, "no route to host")
        if request.site in self.down:
            raise EpisodeFaultError(self.down[request.site], f"{request.site} is down")
        await context.clock.sleep(self.rng.lognormvariate(3.0, 1.0))
        if self.rng.random() < self.crash_share:
            raise EpisodeFaultError(FaultKind.BROWSER_LOST, "lost")
        return EpisodeResult(is_success=True, reward=float(self.rng.random() < 0.5))

    def note(self, record: EpisodeRecord) -> None:
        self.ended[record.site, record.fault.kind.value if record.fault else "well"] += 1

    def run(self, body: Callable[[RolloutController], Awaitable[None]], **config: float) -> None:
        """Run `body`, a trainer, with a controller."""

        async def main() -> None:
            manager = StalenessManager(
                StalenessConfig(
                    max_concurrent=SLOTS, consumer_batch_size=BATCH, max_off_policyness=2
                )
            )
            executor = WorkflowExecutor(
                self.workflow,
                num_slots=SLOTS,
                clock=self.clock,
                deadline_s=600.0,
                retry=RetryPolicy(max_retries=2, base_delay_s=0.1),
            )
            controller = RolloutController(
                [LocalWorker(executor)],
                manager,
                source=self.source,
                config=msgspec.structs.replace(ControllerConfig(), **config),
                on_ended=self.note,
                clock=self.clock,
            )
            async with executor, controller:
                await body(controller)

        self.clock.run(main())

    def train(self, num_batches: int, **config: float) -> int:
        """Make so many updates; return how many episodes were started."""

        async def body(controller: RolloutController) -> None:
            for version in range(1, num_batches + 1):
                batch = await controller.prepare_batch(BATCH, timeout_s=3600.0)
                assert all(group.group_size == GROUP for group in batch)
                await self.clock.sleep(5.0)
                controller.advance(version)

        self.run(body, **config)
        return self.num_started


def down_sites(share: float) -> dict[str, FaultKind]:
    rng = random.Random(3)
    kinds = [kind for kind in FaultKind if kind.is_of_site]
    sites = rng.sample(range(NUM_SITES), round(share * NUM_SITES))
    return {f"site-{site}": rng.choice(kinds) for site in sites}


@pytest.mark.parametrize("kind", list(FaultKind))
def test_kind_and_site_of_a_fault_survive_the_way_to_the_controller(kind: FaultKind) -> None:
    [request] = make_group("g", 1, site="x.org:8443")
    record = record_of(request, Fault(kind=kind, boundary="test", message="m"))
    packed = msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=EpisodeRecord)
    for arrived in (packed, pickle.loads(pickle.dumps(record))):
        assert arrived.site == "x.org:8443"
        assert arrived.fault is not None
        assert arrived.fault.kind is kind


@pytest.mark.requirement("sites-down-never-stop-a-run")
def test_with_26_percent_of_sites_down_300_batches_run_through() -> None:
    def world() -> World:
        return World(down=down_sites(0.26), crash_share=0.01)

    seen = world()
    with_refills = seen.train(300)
    assert with_refills <= 1.1 * world().train(300, max_refills=0)
    for site, why in seen.down.items():
        assert seen.ended[site, why.value] > 0
        assert seen.ended[site, "well"] == 0


def test_faults_that_pass_are_refilled_until_groups_are_whole() -> None:
    world = World(crash_share=0.1)

    async def body(controller: RolloutController) -> None:
        for version in range(1, 21):
            batch = await controller.prepare_batch(BATCH, timeout_s=3600.0)
            assert [group.num_lost for group in batch] == [0] * len(batch)
            controller.advance(version)

    world.run(body)


@pytest.mark.parametrize("kind", [kind for kind in FaultKind if kind.is_of_site])
def test_one_site_of_two_that_is_down_never_stops_a_run(kind: FaultKind) -> None:
    world = World(down={"site-1": kind}, num_sites=2)
    world.train(20)
    assert world.ended["site-1", kind.value] > 0


@pytest.mark.requirement("outage-ends-with-a-message")
def test_with_the_network_down_the_run_ends_within_minutes_and_says_so() -> None:
    world = World(outages=[(300.0, 1e9)])
    with pytest.raises(
        StarvedError, match=r"\(network_down \d+\) on \d+ sites: this is not one site, everything"
    ) as caught:
        world.train(300)
    assert "the last network_down: no route to host" in str(caught.value)
    assert world.clock.time() < 300.0 + 600.0


def test_a_network_that_comes_back_costs_the_time_that_it_was_away() -> None:
    world = World(outages=[(300.0, 420.0)])
    world.train(40)


def test_during_an_outage_episodes_start_one_by_one() -> None:
    world = World(outages=[(300.0, 540.0)])
    during = 0

    async def body(controller: RolloutController) -> None:
        nonlocal during
        version = 0
        while world.clock.time() < 300.0:
            await controller.prepare_batch(BATCH, timeout_s=3600.0)
            version += 1
            controller.advance(version)
        await world.clock.sleep(60.0)
        assert controller.statistics().is_on_trial
        before = world.num_started
        await world.clock.sleep(540.0 - world.clock.time())
        during = world.num_started - before

    world.run(body, outage_patience_s=600.0)
    assert 5 <= during <= 20
