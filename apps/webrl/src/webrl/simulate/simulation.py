"""The parts that both modes share: virtual time, servers, episodes, task order and filter."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from awrl_rollout import EpisodeRecord, EpisodeRequest, RetryPolicy

from webrl.config import WebRLConfig
from webrl.rollout.batch_source import GroupFilter
from webrl.rollout.worker import RETRY_DELAY_S
from webrl.simulate.events import EventLine
from webrl.simulate.figures import Recording, StepTimes
from webrl.simulate.model import SimulationModel
from webrl.simulate.plans import EpisodePlan, ModelPlans, PlanSource
from webrl.simulate.server import SimulatedServer
from webrl.simulate.workflow import SimulatedEpisodes, pause_s

_GAUGES_PER_EPISODE = 10
"""Looks at the whole in the time of a mean episode."""
_NUM_SAMPLED = 64
"""Plans whose mean length sets the distance of two looks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceLayout:
    """How many devices each role has."""

    num_servers: int
    num_ranks: int

    @classmethod
    def of(cls, config: WebRLConfig) -> DeviceLayout:
        """Return the layout of an asynchronous configuration."""
        allocation = config.allocation
        return cls(
            num_servers=allocation.role("rollout").dims.d,
            num_ranks=allocation.role("actor").dims.d,
        )

    def shared(self, config: WebRLConfig) -> DeviceLayout:
        """Return the synchronous layout: every GPU serves and then trains; CPUs stay as they are."""
        if config.cluster.num_gpus == 0:
            return self
        devices = self.num_servers + self.num_ranks
        return DeviceLayout(num_servers=devices, num_ranks=devices)


class EndlessGroups:
    """Groups 0, 1, 2 and so on without a page: a plan knows them by their number."""

    def __init__(self, group_size: int) -> None:
        self._size = group_size
        self._numbers = itertools.count()

    def next_group(self) -> list[EpisodeRequest]:
        """Return the requests of the next group."""
        index = next(self._numbers)
        return [
            EpisodeRequest(
                episode_id=f"{index}/{member}",
                group_id=str(index),
                member=member,
                group_size=self._size,
            )
            for member in range(self._size)
        ]

    def finish(self, group_id: str) -> None:
        """Nothing is kept of a group: a simulation is never resumed."""


class Simulation:
    """One mode's simulation: what exists whatever the pool.

    Args:
        model: Every assumption.
        layout: Devices of each role.
        plans: What episodes do; drawn from the model when None.
    """

    def __init__(
        self,
        config: WebRLConfig,
        model: SimulationModel,
        layout: DeviceLayout,
        plans: PlanSource | None,
        *,
        mode: str,
    ) -> None:
        self.config = config
        self.model = model
        self.layout = layout
        self.line = EventLine()
        self.servers = [SimulatedServer(self.line, model.server) for _ in range(layout.num_servers)]
        self.plans = ModelPlans(model.episode, seed=config.seed) if plans is None else plans
        self.workflow = SimulatedEpisodes(
            self.line, self.servers, self.plans, is_sticky=model.server.is_sticky
        )
        self.stream = EndlessGroups(config.gconfig.n_samples)
        self.filter = GroupFilter(self.stream)
        self.retry = RetryPolicy(
            max_retries=config.rollout.max_attempts - 1, base_delay_s=RETRY_DELAY_S
        )
        num_slots = min(config.env.num_slots, config.rollout.max_concurrent_rollouts)
        self.recording = Recording(
            mode=mode,
            num_slots=num_slots,
            num_servers=layout.num_servers,
            num_ranks=layout.num_ranks,
            num_warmup=min(config.off_policyness_bound + 2, max(1, config.total_steps // 2)),
        )
        self.gauge_every_s = mean_episode_s(self.plans, model) / _GAUGES_PER_EPISODE

    async def update(self, records: list[EpisodeRecord]) -> tuple[float, float]:
        """Train on these and publish; return when the update ended and when servers went on."""
        loop, model = asyncio.get_running_loop(), self.model
        num_rows = rows_of(records)
        seconds = model.trainer.fixed_s + model.trainer.row_s * num_rows / self.layout.num_ranks
        await pause_s(self.line, seconds)
        trained_s = loop.time()
        for server in self.servers:
            server.pause(trained_s)
        await pause_s(self.line, model.publish.window_s)
        version = self.servers[0].version + 1
        resumed_s = loop.time()
        for server in self.servers:
            server.resume(resumed_s, version)
        self.line.arm(resumed_s)
        return trained_s, resumed_s

    def note_step(
        self,
        *,
        times: tuple[float, float, float, float, float],
        records: list[EpisodeRecord],
        busy_s: float,
    ) -> None:
        """Record one step.

        Args:
            times: Start, batch complete, update done, servers going on, end.
            busy_s: Slot seconds inside episodes so far.
        """
        self.recording.steps.append(
            StepTimes(
                *times,
                num_rows=rows_of(records),
                num_episodes=len(records),
                queue_s=tuple(times[1] - record.ended_s for record in records),
                num_ended=self.filter.num_episodes,
                busy_s=busy_s,
                server_busy_s=sum(server.busy_s for server in self.servers),
                request_s=sum(server.request_s for server in self.servers),
            )
        )

    async def look_again(self, look: Callable[[], None]) -> None:
        """Call `look` at even distances, for ever."""
        while True:
            await asyncio.sleep(self.gauge_every_s)
            look()


def rows_of(records: list[EpisodeRecord]) -> int:
    """Return the training rows of these episodes."""
    total = 0
    for record in records:
        plan = record.payload
        assert isinstance(plan, EpisodePlan)
        total += plan.num_steps
    return total


def mean_episode_s(plans: PlanSource, model: SimulationModel) -> float:
    """Return the mean length of an episode on idle servers.

    Args:
        model: Every assumption.
    """
    total = 0.0
    for index in range(_NUM_SAMPLED):
        name = str(index)
        plan = plans.plan(EpisodeRequest(episode_id=f"{name}/0", group_id=name))
        prompts = model.server.prefill_tokens * plan.num_steps
        total += (
            plan.reset_s + sum(plan.step_s) + model.server.token_s * (sum(plan.tokens) + prompts)
        )
    return total / _NUM_SAMPLED
