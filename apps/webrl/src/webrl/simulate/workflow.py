"""The workflow of a simulated episode: the executor's slots run it as they run the real one.

Its steps are events, see `webrl.simulate.events`; the slot's task wakes once, at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from awrl_rollout import EpisodeAssignment, EpisodeContext, EpisodeRequest, EpisodeResult

from webrl.simulate.events import EventLine
from webrl.simulate.plans import EpisodePlan, PlanSource
from webrl.simulate.server import SimulatedServer


async def pause_s(line: EventLine, delay_s: float) -> None:
    """Return after `delay_s` virtual seconds, as an audible event."""
    if delay_s <= 0.0:
        return
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    now_s = loop.time()
    line.at(now_s + delay_s, lambda: _wake(future), is_audible=True)
    line.arm(now_s)
    await future


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class SimulatedEpisodes:
    """Runs planned episodes on simulated servers; the workflow of executors and pools.

    Args:
        servers: Where requests are answered.
        is_sticky: Whether an episode stays on the one that the real assignment gives it; or each
            request goes to the one with the fewest.
    """

    def __init__(
        self,
        line: EventLine,
        servers: Sequence[SimulatedServer],
        plans: PlanSource,
        *,
        is_sticky: bool = True,
    ) -> None:
        self._is_sticky = is_sticky
        self._assignment = EpisodeAssignment(map(str, range(len(servers))))
        self._line = line
        self._servers = servers
        self._plans = plans
        self.num_running = 0
        """Episodes between their start and their end."""

    async def __call__(self, request: EpisodeRequest, context: EpisodeContext) -> EpisodeResult:
        """Run one episode."""
        context.enter("episode")
        loop = asyncio.get_running_loop()
        servers = self._servers
        if self._is_sticky:
            name = self._assignment.assign("", [request.episode_id])[request.episode_id]
            servers = [servers[int(name)]]
        run = _Run(self._line, servers, self._plans.plan(request), loop.create_future())
        now_s = loop.time()
        self._line.at(now_s + run.plan.reset_s, run.ask)
        self._line.arm(now_s)
        self.num_running += 1
        try:
            await run.end
        finally:
            self.num_running -= 1
            self._assignment.release("", [request.episode_id])
        return EpisodeResult(
            is_success=run.plan.is_success,
            payload=run.plan,
            reward=float(run.plan.is_success),
            oldest_version=run.oldest_version,
            newest_version=run.newest_version,
        )


class _Run:
    """Where one episode stands."""

    __slots__ = ("_index", "_line", "_servers", "end", "oldest_version", "plan")

    def __init__(
        self,
        line: EventLine,
        servers: Sequence[SimulatedServer],
        plan: EpisodePlan,
        end: asyncio.Future[None],
    ) -> None:
        self._line = line
        self._index = 0
        self._servers = servers
        self.plan = plan
        self.end = end
        self.oldest_version = -1

    @property
    def newest_version(self) -> int:
        """The version that the servers hold: all of them the same."""
        return self._servers[0].version

    def ask(self) -> None:
        """Send the request of the next step, unless the episode was cancelled."""
        if self._index == 0:
            self.oldest_version = self.newest_version
        if not self.end.done():
            server = min(self._servers, key=lambda server: server.num_requests)
            server.add(self.plan.tokens[self._index], self._answered)

    def _answered(self) -> None:
        at_s = self._line.now_s + self.plan.step_s[self._index]
        self._index += 1
        if self._index < len(self.plan.tokens):
            self._line.at(at_s, self.ask)
        else:
            self._line.at(at_s, lambda: _wake(self.end), is_audible=True)
