"""Both loops in virtual time: the real controller, executors, synchronous pools and ledger.

Only what costs time is simulated: servers, browsers, the update and the broadcast. Who may start,
what is in a batch, what is too far behind and what is dropped is decided by the code that decides it
in a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import msgspec
from awrl_rollout import (
    EpisodeRequest,
    FaultBreaker,
    LocalWorker,
    RolloutController,
    RolloutError,
    SlotTime,
    SyncPool,
    UnwrappedTaskGroup,
    VirtualClock,
    WorkflowExecutor,
)
from awrl_staleness import StalenessManager

from webrl.config import WebRLConfig
from webrl.errors import RunFailedError
from webrl.launch import component_configs
from webrl.rollout.batch_source import EverlastingRollouts, SynchronousRollouts
from webrl.simulate.figures import Gauge, Recording
from webrl.simulate.model import SimulationModel
from webrl.simulate.plans import PlanSource
from webrl.simulate.simulation import DeviceLayout, Simulation
from webrl.simulate.workflow import pause_s

_NEVER_S = 1e9
"""Virtual seconds until a poll that a simulation does not need: no callback is ever lost."""


def simulate_asynchronous(
    config: WebRLConfig, model: SimulationModel, plans: PlanSource | None = None
) -> Recording:
    """Run `config.total_steps` steps of the everlasting pool in virtual time.

    Args:
        config: An asynchronous configuration.
        model: Every assumption.
        plans: What episodes do; drawn from the model when None.

    Raises:
        RunFailedError: The run had to stop: most episodes miss their deadline, for example.
    """
    clock = VirtualClock()
    simulation = Simulation(config, model, DeviceLayout.of(config), plans, mode="asynchronous")
    try:
        clock.run(_asynchronous(simulation, clock))
    except RolloutError as error:
        raise RunFailedError(f"the simulated run had to stop, as a real one: {error}") from error
    return simulation.recording


def simulate_synchronous(
    config: WebRLConfig, model: SimulationModel, plans: PlanSource | None = None
) -> Recording:
    """Run `config.total_steps` synchronous rounds and updates in virtual time.

    Args:
        config: The asynchronous configuration; its GPUs serve and train in turns.
        model: Every assumption.
        plans: What episodes do; drawn from the model when None.
    """
    clock = VirtualClock()
    layout = DeviceLayout.of(config).shared(config)
    simulation = Simulation(config, model, layout, plans, mode="synchronous")
    clock.run(_synchronous(simulation, clock))
    return simulation.recording


class _DistantWorker(LocalWorker):
    """A worker that hears of requests a while after they were sent."""

    def __init__(self, executor: WorkflowExecutor, simulation: Simulation) -> None:
        super().__init__(executor)
        self._slots = executor
        self._simulation = simulation

    async def submit(self, requests: Sequence[EpisodeRequest]) -> None:
        """Hand requests to the executor after the way to it."""
        delay_s = self._simulation.model.session.dispatch_s
        if delay_s <= 0.0:
            await super().submit(requests)
            return
        line, now_s = self._simulation.line, asyncio.get_running_loop().time()
        line.at(now_s + delay_s, lambda: self._slots.submit(requests), is_audible=True)
        line.arm(now_s)


class _RoundPool(SyncPool):
    """A pool in this process as a batch source asks it."""

    async def round_statistics(self) -> SlotTime:
        """Return rounds and slot time."""
        return self.statistics()


async def _asynchronous(simulation: Simulation, clock: VirtualClock) -> None:
    config, recording = simulation.config, simulation.recording
    manager = StalenessManager(component_configs.staleness_config(config))
    executors = [
        WorkflowExecutor(
            simulation.workflow,
            num_slots=config.env.slots_per_worker,
            name=f"worker-{index}",
            deadline_s=config.env.episode_timeout_s,
            retry=simulation.retry,
            clock=clock,
        )
        for index in range(config.env.num_workers)
    ]
    async with AsyncExitStack() as stack:
        for executor in executors:
            await stack.enter_async_context(executor)
        controller = await stack.enter_async_context(
            RolloutController(
                [_DistantWorker(executor, simulation) for executor in executors],
                manager,
                source=simulation.stream.next_group,
                config=msgspec.structs.replace(
                    component_configs.controller_config(config),
                    poll_interval_s=_NEVER_S,
                    watchdog_interval_s=_NEVER_S,
                ),
                accept_group=simulation.filter.accept,
                on_discarded=simulation.filter.discarded,
                on_group_dropped=simulation.filter.group_dropped,
                clock=clock,
            )
        )
        async with UnwrappedTaskGroup() as group:
            looking = group.create_task(
                simulation.look_again(lambda: _look(simulation, controller))
            )
            rollouts = EverlastingRollouts(controller, {}, simulation.filter)
            for version in range(1, config.total_steps + 1):
                await _step(simulation, rollouts, version, executors)
            looking.cancel()
        _keep_ledger(recording, manager)
        simulation.line.close()


async def _step(
    simulation: Simulation,
    rollouts: EverlastingRollouts,
    version: int,
    executors: Sequence[WorkflowExecutor],
) -> None:
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    batch = await rollouts.prepare_batch(
        simulation.config.rollout.consumer_batch_size, timeout_s=_NEVER_S
    )
    collected_s = loop.time()
    records = [record for group in batch for record in group.trainable]
    trained_s, resumed_s = await simulation.update(records)
    await pause_s(simulation.line, simulation.model.publish.outside_s)
    rollouts.advance(version)
    simulation.filter.take_dropped()
    pictures = [executor.statistics() for executor in executors]
    simulation.note_step(
        times=(started_s, collected_s, trained_s, resumed_s, loop.time()),
        records=records,
        busy_s=sum(picture.busy_s for picture in pictures),
    )


def _look(simulation: Simulation, controller: RolloutController) -> None:
    statistics = controller.statistics()
    bound = statistics.blocked_by or "nothing"
    if statistics.num_in_flight >= simulation.recording.num_slots:
        bound = "slots"
    simulation.recording.gauges.append(
        Gauge(
            at_s=asyncio.get_running_loop().time(),
            num_episodes=simulation.workflow.num_running,
            num_requests=sum(server.num_running for server in simulation.servers),
            num_ready=statistics.num_ready_episodes,
            bound=bound,
        )
    )


def _keep_ledger(recording: Recording, manager: StalenessManager) -> None:
    seen = manager.statistics()
    recording.off_policyness = seen.off_policyness
    recording.in_flight_age = seen.in_flight_age
    recording.in_queue_age = seen.in_queue_age
    recording.wasted = seen.wasted_by_reason
    recording.num_trained = seen.num_trained


async def _synchronous(simulation: Simulation, clock: VirtualClock) -> None:
    config, loop = simulation.config, asyncio.get_running_loop()
    pools = [
        _RoundPool(
            simulation.workflow,
            num_slots=config.env.slots_per_worker,
            name=f"pool-{index}",
            spawn=_session_opener(simulation),
            deadline_s=config.env.episode_timeout_s,
            retry=simulation.retry,
            clock=clock,
        )
        for index in range(config.env.num_workers)
    ]
    rounds = SynchronousRollouts(
        pools,
        simulation.stream,
        simulation.filter,
        group_size=config.gconfig.n_samples,
        breaker=FaultBreaker(max_share=None, window=1),
    )
    num_episodes = simulation.model.synchronous.round_episodes or config.rollout.consumer_batch_size
    async with UnwrappedTaskGroup() as group:
        looking = group.create_task(simulation.look_again(lambda: _look_at_round(simulation)))
        for _ in range(config.total_steps):
            started_s = loop.time()
            groups = await rounds.run_round(num_episodes)
            accepted = [record for group in groups for record in group.records]
            collected_s = loop.time()
            trained_s, resumed_s = await simulation.update(accepted)
            await pause_s(
                simulation.line,
                simulation.model.publish.outside_s + simulation.model.synchronous.switch_s,
            )
            simulation.recording.num_trained += len(accepted)
            simulation.note_step(
                times=(started_s, collected_s, trained_s, resumed_s, loop.time()),
                records=accepted,
                busy_s=sum(pool.statistics().busy_s for pool in pools),
            )
        looking.cancel()
    simulation.recording.off_policyness = {0: simulation.recording.num_trained}
    rejected = rounds.num_completed - simulation.recording.num_trained
    simulation.recording.wasted = {"rejected: zero_variance": rejected} if rejected else {}
    simulation.line.close()


def _session_opener(simulation: Simulation) -> Callable[[int], Awaitable[None]]:
    """Return what opens one worker's sessions, so many at once."""
    at_once = asyncio.Semaphore(simulation.model.session.opens_at_once)

    async def open_session(slot: int) -> None:
        del slot
        async with at_once:
            await pause_s(simulation.line, simulation.model.session.open_s)

    return open_session


def _look_at_round(simulation: Simulation) -> None:
    simulation.recording.gauges.append(
        Gauge(
            at_s=asyncio.get_running_loop().time(),
            num_episodes=simulation.workflow.num_running,
            num_requests=sum(server.num_running for server in simulation.servers),
            num_ready=0,
            bound="barrier",
        )
    )
