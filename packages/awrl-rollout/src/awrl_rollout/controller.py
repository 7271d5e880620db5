"""`RolloutController`: one run's admission, dispatch, assembly and batches over many workers.

Invariants, whatever workers, callbacks and hooks do:
* every admitted episode ends in exactly one ledger state; a duplicate or late record is counted
  and ignored;
* training episodes in flight never exceed the manager's bounds, and episodes on one worker never
  exceed its slots;
* what `prepare_batch` calls trainable lies at most eta versions behind at that moment;
* evaluation episodes never touch the manager.

The loops are in `awrl_rollout.dispatcher`, the decisions in `admission`, `assembly`, `batch_rule` and
`awrl_staleness`. The trainer's side (`prepare_batch`, `advance`, `release_budget`) runs in the caller's
task; it waits for complete groups and is unblocked by the collect loops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from awrl_staleness import StalenessManager

from awrl_rollout.admission import ExtraBounds, TaskSource
from awrl_rollout.batch import RolloutBatch
from awrl_rollout.batch_rule import BatchRule, check_num_episodes
from awrl_rollout.clock import Clock, RealClock
from awrl_rollout.controller_config import ControllerConfig
from awrl_rollout.dispatcher import Dispatcher
from awrl_rollout.episode import EpisodeRecord, EpisodeRequest
from awrl_rollout.errors import BatchTimeoutError
from awrl_rollout.hooks import AcceptGroup, ControllerHooks, DiscardHook, GroupDropHook
from awrl_rollout.reporter import Reporter
from awrl_rollout.resume import ControllerSnapshot, load_snapshot, take_snapshot
from awrl_rollout.statistics import ControllerStatistics, ExecutorStatistics
from awrl_rollout.worker import Worker


class RolloutController:
    """Keeps workers full and hands complete groups to a trainer; use it as `async with`.

    Args:
        workers: The first workers; more can be added.
        manager: The run's one authority on pacing.
        source: Returns the next group's requests, None when a single pass is over.
        config: Time limits and policies.
        accept_group: Returns why a complete group is rejected, None to accept it.
        on_discarded: Told of each training record that no batch will hold, with the reason.
        on_group_dropped: Told of each group that no batch will hold, with the reason.
        extra_bounds: Further named admission bounds, in episodes.
        on_worker_lost: Called with the name of a worker that died, so that it can be replaced.
        resume_from: Where an earlier controller stood; `manager` was restored from it too.
        clock: Source of time.
    """

    def __init__(
        self,
        workers: Iterable[Worker],
        manager: StalenessManager,
        *,
        source: TaskSource | None = None,
        config: ControllerConfig | None = None,
        accept_group: AcceptGroup | None = None,
        on_discarded: DiscardHook | None = None,
        on_group_dropped: GroupDropHook | None = None,
        extra_bounds: ExtraBounds | None = None,
        on_worker_lost: Callable[[str], None] | None = None,
        resume_from: ControllerSnapshot | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config = ControllerConfig() if config is None else config
        self._clock = RealClock() if clock is None else clock
        self._dispatcher = Dispatcher(
            manager,
            source=source,
            config=self.config,
            hooks=ControllerHooks.of(accept_group, on_discarded, on_group_dropped, on_worker_lost),
            extra_bounds=extra_bounds,
            clock=self._clock,
        )
        self._parts = self._dispatcher.parts
        self._reporter = Reporter(self._parts, self.config.watchdog_interval_s, self._clock)
        self._rule = BatchRule(self._parts, self.config, self._clock)
        if resume_from is not None:
            load_snapshot(self._parts, resume_from)
        for worker in workers:
            self._dispatcher.add_worker(worker)

    # -- life

    async def __aenter__(self) -> Self:
        """Start the loops."""
        await self._dispatcher.enter(self._reporter.watch)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the controller and wait for its loops."""
        await self.aclose()
        await self._dispatcher.leave(exc)

    async def aclose(self, *, timeout_s: float = 10.0) -> None:
        """Return within `timeout_s` with every episode ended in the ledger; harmless if repeated.

        Workers are asked to cancel what they run; they are not closed. Ready groups stay queued.
        """
        await self._dispatcher.aclose(timeout_s)

    def add_worker(self, worker: Worker) -> None:
        """Use one more worker from now on, or one in place of a dead one of its name.

        Raises:
            ValueError: A live worker has its name.
            ClosedError: The controller is closed or not entered yet.
        """
        self._dispatcher.check_open()
        self._dispatcher.add_worker(worker)

    # -- the trainer's side

    async def prepare_batch(
        self, num_episodes: int, *, timeout_s: float | None = None
    ) -> RolloutBatch:
        """Return the oldest complete groups, once they were asked for `num_episodes`.

        Args:
            num_episodes: Episodes, counted as the groups were asked for.
            timeout_s: Limit for the wait; None for none.

        Raises:
            BatchTimeoutError: It did not fill in time; nothing was consumed.
            DataExhaustedError: The source is over and the batch cannot fill.
            FaultShareError: The share of faults stayed above its limit.
            StarvedError: Nothing runs, nothing may start, and nothing waits.
            ClosedError: The controller is closed or not entered yet.
            ValueError: `num_episodes` is below 1.
        """
        check_num_episodes(num_episodes)
        self._reporter.trainer_waits(num_episodes)
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    self._dispatcher.check_open()
                    self._parts.assembly.sweep()
                    self._dispatcher.pump()
                    batch = self._rule.try_batch(num_episodes)
                    if batch is not None:
                        return batch
                    await self._dispatcher.changed.wait()
        except TimeoutError as error:
            raise BatchTimeoutError(
                f"a batch of {num_episodes} must fill within {timeout_s} s, got "
                f"{self._parts.assembly.ready.num_episodes}: {self.describe()}. Raise the limit, "
                "or mend what the sentence names."
            ) from error
        finally:
            self._reporter.trainer_goes_on()

    def advance(self, version: int, *, batches: Sequence[int] | None = None) -> int:
        """Note the servers' new version; release the budget of the batches behind it.

        Args:
            version: The version that the servers hold now.
            batches: `RolloutBatch.batch` numbers; None means every consumed batch.

        Returns:
            How many episodes these batches held.
        """
        num_released = self._parts.manager.advance(version, batches=batches)
        self._parts.assembly.forget(batches)
        self._dispatcher.kick()
        return num_released

    def release_budget(self, *, batches: Sequence[int] | None = None) -> int:
        """Release skipped or discarded batches, return how many episodes; the version stays."""
        num_released = self._parts.manager.release_budget(batches)
        self._parts.assembly.forget(batches)
        self._dispatcher.kick()
        return num_released

    # -- requests

    def submit(self, requests: Sequence[EpisodeRequest]) -> None:
        """Put requests in line, training groups ahead of the task source.

        Training waits for its budget and comes by `prepare_batch`, evaluation by `wait`.

        Raises:
            ValueError: A group is malformed, or an evaluation id is live.
            ClosedError: The controller is closed or not entered yet.
        """
        self._dispatcher.check_open()
        self._parts.admission.submit([item for item in requests if not item.is_eval])
        self._parts.desk.submit([item for item in requests if item.is_eval])
        self._dispatcher.kick()

    async def wait(
        self, episode_ids: Sequence[str], *, timeout_s: float | None = None
    ) -> list[EpisodeRecord]:
        """Return the records of evaluation episodes, in the order of the ids; give up on an error.

        Raises:
            BatchTimeoutError: Not all ended in time; the rest was cancelled.
            LookupError: An id is not a live evaluation episode.
            ClosedError: The controller is closed or not entered yet.
        """
        dispatcher, desk = self._dispatcher, self._parts.desk
        dispatcher.check_open()
        desk.check(episode_ids)
        try:
            records = await desk.collect(
                episode_ids, dispatcher.changed, lambda: dispatcher.is_closed, timeout_s
            )
            dispatcher.check_open()
            return records
        finally:
            desk.give_up(episode_ids)
            for flight in self._parts.fleet.cancel(episode_ids, "the evaluation was given up"):
                flight.link.ask_to_cancel(flight.request.episode_id)

    async def rollout_batch(
        self, requests: Sequence[EpisodeRequest], *, timeout_s: float | None = None
    ) -> list[EpisodeRecord]:
        """Run evaluation episodes; one record per request, in their order, faults included.

        Raises:
            BatchTimeoutError: Not all ended in time; the rest was cancelled.
            ValueError: An id is live.
            ClosedError: The controller is closed or not entered yet.
        """
        self._dispatcher.check_open()
        self._parts.desk.submit(requests)
        self._dispatcher.kick()
        return await self.wait([item.episode_id for item in requests], timeout_s=timeout_s)

    # -- pausing

    def pause_admission(self) -> None:
        """Start no further training episode; running ones go on."""
        self._parts.admission.is_paused = True

    def resume_admission(self) -> None:
        """Start training episodes again."""
        self._parts.admission.is_paused = False
        self._dispatcher.kick()

    async def pause_generation(self) -> None:
        """Return once no live worker sends requests to an inference server."""
        async with asyncio.TaskGroup() as group:
            for link in self._parts.fleet.live:
                group.create_task(link.pause())

    async def resume_generation(self) -> None:
        """Let every live worker generate again."""
        async with asyncio.TaskGroup() as group:
            for link in self._parts.fleet.live:
                group.create_task(link.resume())

    async def drain(self, *, timeout_s: float | None = None) -> None:
        """Pause admission and return once no episode is in flight, else `BatchTimeoutError`."""
        self.pause_admission()
        fleet = self._parts.fleet
        try:
            await self._dispatcher.changed.wait_for(
                lambda: not fleet.num_in_flight, timeout_s=timeout_s
            )
        except TimeoutError as error:
            raise BatchTimeoutError(
                f"all episodes must end within {timeout_s} s, got {fleet.num_in_flight} in "
                "flight. Raise the limit or close the controller."
            ) from error

    def nudge(self, worker_name: str) -> None:
        """Look at a worker's records now; what a completion callback calls, any number of times."""
        self._dispatcher.nudge(worker_name)

    # -- reports

    def describe(self) -> str:
        """Return one sentence: what waits for what."""
        return self._parts.describe()

    def statistics(self) -> ControllerStatistics:
        """Return a frozen picture of flights, groups and counts."""
        return self._parts.statistics()

    async def worker_statistics(self) -> list[ExecutorStatistics]:
        """Return what each live worker does now."""
        return await self._reporter.worker_statistics()

    async def report(self) -> str:
        """Return one sentence: for whom the trainer waits, and where most slots are stuck."""
        return await self._reporter.report()

    def snapshot(self) -> ControllerSnapshot:
        """Return what a checkpoint has to hold; read the task source's position with it."""
        return take_snapshot(self._parts)
