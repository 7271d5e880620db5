"""Where the trainer's batches come from: the everlasting pool, or synchronous rounds.

Both give the trainer the same thing, a `RolloutBatch` of groups, and are notified of the same
events, so the step loop is one piece of code.

Invariants:
    * a group is reported to the group stream as finished exactly once, when it was consumed,
      rejected or dropped; until then a resume hands it out again;
    * the budget of a synchronous round ends with the round: nothing is left over for the next one;
    * rounds without a usable group are repeated, until the breaker says that the infrastructure is
      down.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

from awrl_rollout import (
    Clock,
    EpisodeAssignment,
    EpisodeRecord,
    EpisodeRequest,
    ExecutorStatistics,
    FaultBreaker,
    GroupResult,
    RealClock,
    RolloutBatch,
    RolloutController,
    SlotTime,
    UnwrappedTaskGroup,
    Worker,
)

from webrl.cluster.scheduler import WorkerHandle, call_worker
from webrl.errors import EngineCallError, RunFailedError
from webrl.judge import JudgeUsage
from webrl.rollout.trajectory import Trajectory
from webrl.rollout.worker import RolloutWorker

logger = logging.getLogger(__name__)

CALL_DEADLINE_S = 60.0
"""A worker that does not answer a call for this long counts as dead."""

STATISTICS_DEADLINE_S = 10.0
"""Looking at a worker's slots; a busy laptop answers within a second."""

POLL_S = 0.5
"""Between two looks at a breaker that holds rounds back."""

LAST_GROUPS = 200
"""Groups that a sentence about the last ones counts."""

NAMED_TASKS = 5
"""Tasks that an error names."""

Verdict: TypeAlias = Literal["all failed", "all succeeded", "useful"]
"""What a group's rewards are worth: equal ones carry no gradient."""


class GroupStream(Protocol):
    """Hands out groups of sibling requests, such as a `TaskStream`."""

    def next_group(self) -> list[EpisodeRequest]:
        """Return the requests of the next group."""
        ...

    def finish(self, group_id: str) -> None:
        """Note that a group never has to come again."""
        ...


class GroupFilter:
    """Decides which complete groups carry a gradient, and remembers who was dropped.

    The leases of dropped episodes are released by the trainer in one call per step.

    Args:
        stream: Notified of every group that is over.
        on_group: Given the members of each complete group, before it is judged.
        on_accepted: Given those of each group that carries a gradient.
        most_useless: Groups in a row without a gradient after which there is no hope of a batch;
            None never gives up.
        on_hopeless: Called then, once.
        on_ended: Told of each record of a synchronous round.
        site_metrics: Figures of the sites that episodes run on.
    """

    def __init__(
        self,
        stream: GroupStream,
        on_group: Callable[[Sequence[EpisodeRecord]], None] = lambda records: None,
        *,
        on_accepted: Callable[[Sequence[EpisodeRecord]], None] = lambda records: None,
        most_useless: int | None = None,
        on_hopeless: Callable[[], None] = lambda: None,
        on_ended: Callable[[EpisodeRecord], None] = lambda record: None,
        site_metrics: Callable[[], dict[str, float]] = dict,
    ) -> None:
        self._on_ended = on_ended
        self._site_metrics = site_metrics
        self._on_accepted = on_accepted
        self._stream = stream
        self._on_group = on_group
        self._most_useless = most_useless
        self._on_hopeless = on_hopeless
        self._dropped: dict[str, None] = {}
        self._last: deque[tuple[Verdict, str]] = deque(maxlen=LAST_GROUPS)
        self._num_useless = 0
        self._counts: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()
        self._usages: list[JudgeUsage] = []
        self.num_episodes = 0
        self.num_success = 0

    def accept(self, records: Sequence[EpisodeRecord]) -> str | None:
        """Return why a complete group is rejected, None to accept it."""
        self._on_group(records)
        rewards = [record.reward for record in records if record.reward is not None]
        if not rewards:
            return "no member ended with a reward"
        verdict = verdict_on(rewards)
        self.num_episodes += len(rewards)
        successes = sum(reward > 0 for reward in rewards)
        self.num_success += successes
        self._counts.update(groups=1, episodes=len(rewards), successes=successes)
        self._counts[verdict] += 1
        self._counts.update(reply_counts(records))
        self._note_usage(records)
        self._last.append((verdict, _task_of(records)))
        if verdict == "useful":
            self._num_useless = 0
            self._on_accepted(records)
            return None
        self._num_useless += 1
        if self._num_useless == self._most_useless:
            self._on_hopeless()
        return "zero_variance"

    def _note_usage(self, records: Sequence[EpisodeRecord]) -> None:
        verdicts = [r.payload.verdict for r in records if isinstance(r.payload, Trajectory)]
        self._usages += [v.usage for v in verdicts if v is not None and v.usage is not None]

    def count_restored(self, num_episodes: int) -> None:
        """Count episodes that ended well before a resume, and after what it goes on from."""
        self.num_episodes += num_episodes

    def describe(self) -> str:
        """Return what the last groups were."""
        if not self._last:
            return "no group has ended yet"
        counts = Counter(verdict for verdict, _ in self._last)
        return (
            f"of the last {len(self._last)} groups {counts['all failed']} all failed, "
            f"{counts['all succeeded']} all succeeded, {counts['useful']} useful"
        )

    def check(self) -> None:
        """Raise when so many groups in a row carried no gradient that there is no hope.

        Raises:
            RunFailedError: It names the tasks, and what to change.
        """
        if self._most_useless is None or self._num_useless < self._most_useless:
            return
        names = Counter(task for _, task in self._last).most_common(NAMED_TASKS + 1)
        listed = ", ".join(repr(task) for task, _ in names[:NAMED_TASKS])
        raise RunFailedError(
            f"a group must have different rewards to be trained on, got {self._num_useless} groups "
            f"in a row without: {self.describe()}. They are of {listed}"
            f"{' and others' if len(names) > NAMED_TASKS else ''}. Where all fail, give easier tasks, "
            "more max_steps, a better policy.path or a graded reward; where all succeed, give harder "
            "tasks. To wait longer, raise rollout.max_useless_groups."
        )

    def accept_round(self, records: Sequence[EpisodeRecord]) -> list[GroupResult]:
        """Return the accepted groups of a whole round; the others are dropped."""
        members_by_group: dict[str, list[EpisodeRecord]] = {}
        for record in records:
            self._on_ended(record)
            members_by_group.setdefault(record.group_id, []).append(record)
        accepted: list[GroupResult] = []
        for group_id, members in members_by_group.items():
            ended = [record for record in members if record.has_ended_well]
            reason = self.accept(ended)
            if reason is not None:
                self.discarded(ended, reason)
                self.group_dropped(group_id, reason)
                continue
            accepted.append(
                GroupResult(
                    group_id=group_id,
                    records=tuple(sorted(ended, key=lambda record: record.member)),
                    expired=frozenset(),
                    group_size=len(members),
                    num_lost=len(members) - len(ended),
                )
            )
        return accepted

    def discarded(self, records: Sequence[EpisodeRecord], reason: str) -> None:
        """Note episodes that no batch will hold."""
        del reason
        self._dropped.update((record.episode_id, None) for record in records)

    def group_dropped(self, group_id: str, reason: str) -> None:
        """Note a group that no batch will hold."""
        del reason
        self._stream.finish(group_id)

    def taken(self, batch: RolloutBatch) -> None:
        """Note that a batch took its groups."""
        for group in batch:
            self._stream.finish(group.group_id)

    def take_dropped(self) -> list[str]:
        """Return the episodes whose screenshots nobody needs any more, each once."""
        dropped, self._dropped = list(self._dropped), {}
        return dropped

    def metrics(self, seconds: float) -> dict[str, float]:
        """Return what was counted since the last call, which was so long ago."""
        now = self._counts - self._seen
        self._seen = self._counts.copy()
        groups, episodes = now["groups"], now["episodes"]
        shares: dict[str, float] = {}
        # A batch that was all in the queue saw no group end: that is no success share of 0.
        if groups:
            shares["rollout/success_share"] = now["successes"] / episodes
            replies = max(1, now["replies"])
            shares["rollout/invalid_share"] = now["invalid"] / replies
            shares["rollout/ill_formed_share"] = now["ill_formed"] / replies
            shares["rollout/truncated_share"] = now["truncated"] / replies
            shares["rollout/zero_variance_share"] = 1.0 - now["useful"] / groups
        usages, self._usages = self._usages, []
        return {
            **shares,
            **self._site_metrics(),
            **judge_metrics(usages),
            "rollout/all_failed_groups": float(now["all failed"]),
            "rollout/all_succeeded_groups": float(now["all succeeded"]),
            "rollout/episodes_per_s": episodes / seconds if seconds > 0 else 0.0,
            "rollout/episodes_total": float(self.num_episodes),
        }


def judge_metrics(usages: Sequence[JudgeUsage]) -> dict[str, float]:
    """Return what the verdicts of some episodes took; nothing where none was judged.

    Faults are not among them: `webrl judge` and the provider's bill know those.
    """
    if not usages:
        return {}
    return {
        "judge/verdicts": float(len(usages)),
        "judge/requests": float(sum(usage.num_requests for usage in usages)),
        "judge/tokens_in": float(sum(usage.tokens_in for usage in usages)),
        "judge/tokens_out": float(sum(usage.tokens_out for usage in usages)),
        "judge/cost": sum(usage.cost for usage in usages),
        "judge/wait_s": sum(usage.wait_s for usage in usages) / len(usages),
    }


def reply_counts(records: Sequence[EpisodeRecord]) -> Counter[str]:
    """Return how many replies the members of a group gave, and how many of each faulty kind."""
    counts: Counter[str] = Counter()
    for record in records:
        steps = record.payload.steps if isinstance(record.payload, Trajectory) else []
        counts.update(
            replies=len(steps),
            invalid=sum(not step.is_valid for step in steps),
            ill_formed=sum(not step.is_in_form for step in steps),
            truncated=sum(step.is_truncated for step in steps),
        )
    return counts


def verdict_on(rewards: Sequence[float]) -> Verdict:
    """Return what a group's rewards are worth.

    Args:
        rewards: Rewards of the members that ended with one, of which there are some.
    """
    if max(rewards) != min(rewards):
        return "useful"
    return "all succeeded" if rewards[0] > 0 else "all failed"


def _task_of(records: Sequence[EpisodeRecord]) -> str:
    payload = records[0].payload if records else None
    return payload.task if isinstance(payload, Trajectory) else "a task"


class EverlastingRollouts:
    """The asynchronous source: a `RolloutController` that never stops.

    Args:
        controller: Entered by the caller.
        workers: Its live workers by name; the caller replaces those that die.
    """

    def __init__(
        self,
        controller: RolloutController,
        workers: Mapping[str, Worker],
        group_filter: GroupFilter,
    ) -> None:
        self._controller = controller
        self._workers = workers
        self._filter = group_filter
        self._slots: dict[str, tuple[float, float]] = {}

    async def prepare_batch(self, num_episodes: int, *, timeout_s: float) -> RolloutBatch:
        """Return the oldest complete groups; see `RolloutController.prepare_batch`."""
        batch = await self._controller.prepare_batch(num_episodes, timeout_s=timeout_s)
        self._filter.taken(batch)
        return batch

    def advance(self, version: int) -> None:
        """Advance the version, which gives back the budget of what was consumed."""
        self._controller.advance(version)

    def release_budget(self) -> None:
        """Give back the budget of what was consumed without a new version."""
        self._controller.release_budget()

    def take_dropped(self) -> list[str]:
        """Return the episodes that ended up in no batch, each once."""
        return self._filter.take_dropped()

    def describe(self) -> str:
        """Return how far the next batch is, and what the last groups were."""
        figures = self._controller.statistics()
        return (
            f"{figures.num_ready_episodes} episodes are ready, {figures.num_faults} of "
            f"{figures.num_completed} were faults, {self._filter.describe()}"
        )

    async def metrics(self, seconds: float) -> dict[str, float]:
        """Return the figures of controller and filter, and the slots' idle share."""
        statistics = self._controller.statistics()
        wasted = statistics.staleness.wasted_by_label.items()
        return {
            **statistics.metrics(),
            **{f"staleness/wasted_{label}_episodes": float(count) for label, count in wasted},
            "rollout/expired_episodes": float(statistics.staleness.num_expired),
            "idle/rollout_share": await self._idle_share(),
            "staleness/bound_binds": float(statistics.blocked_by is not None),
            **self._filter.metrics(seconds),
        }

    async def _idle_share(self) -> float:
        """Return the share of slot time without an episode since the last call."""
        now: dict[str, tuple[float, float]] = {}
        for name, worker in self._workers.items():
            try:
                statistics = await worker.statistics()
            except EngineCallError as error:
                logger.info("no slot figures of %s: %s", name, error)
                continue
            now[name] = (statistics.busy_s, statistics.alive_s)
        before, self._slots = self._slots, now
        busy_s = sum(busy - before.get(name, (0.0, 0.0))[0] for name, (busy, _) in now.items())
        alive_s = sum(alive - before.get(name, (0.0, 0.0))[1] for name, (_, alive) in now.items())
        return max(0.0, 1.0 - busy_s / alive_s) if alive_s > 0 else 0.0


class RayWorker:
    """A rollout worker on Ray as the controller's `Worker`: each method is one remote call.

    Args:
        name: Name of this incarnation, unique over the run.
        num_slots: Episodes that it runs at once.
        assignment: Says on which server each episode runs; told when one has ended.
    """

    def __init__(
        self,
        handle: WorkerHandle[RolloutWorker],
        name: str,
        num_slots: int,
        assignment: EpisodeAssignment,
    ) -> None:
        self._handle = handle
        self._assignment = assignment
        self.name = name
        self.num_slots = num_slots

    async def submit(self, requests: Sequence[EpisodeRequest]) -> None:
        """Hand requests over."""
        servers = self._assignment.assign(self.name, [r.episode_id for r in requests])
        await call_worker(
            self._handle, CALL_DEADLINE_S, RolloutWorker.submit, list(requests), servers
        )

    async def take_finished(self, acknowledged: Sequence[str]) -> list[EpisodeRecord]:
        """Acknowledge records and return all others."""
        records = await call_worker(
            self._handle, CALL_DEADLINE_S, RolloutWorker.take_finished, list(acknowledged)
        )
        self._assignment.release(self.name, [record.episode_id for record in records])
        return records

    async def cancel(self, episode_ids: Sequence[str]) -> None:
        """Cancel episodes."""
        await call_worker(self._handle, CALL_DEADLINE_S, RolloutWorker.cancel, list(episode_ids))

    async def pause(self) -> None:
        """Send no further attempt to an inference server."""
        await call_worker(self._handle, CALL_DEADLINE_S, RolloutWorker.pause)

    async def resume(self) -> None:
        """Send attempts again."""
        await call_worker(self._handle, CALL_DEADLINE_S, RolloutWorker.resume)

    async def statistics(self) -> ExecutorStatistics:
        """Return what the slots do now."""
        return await call_worker(self._handle, CALL_DEADLINE_S, RolloutWorker.statistics)


class RoundPool(Protocol):
    """Runs whole rounds."""

    async def run_round(self, requests: Sequence[EpisodeRequest]) -> list[EpisodeRecord]:
        """Return one record per request, after the slowest has ended."""
        ...

    async def round_statistics(self) -> SlotTime:
        """Return rounds and slot time."""
        ...


class RayRoundPool:
    """A synchronous rollout worker on Ray as a `RoundPool`.

    Args:
        timeout_s: Limit of one round, in seconds.
    """

    def __init__(self, handle: WorkerHandle[RolloutWorker], timeout_s: float) -> None:
        self._handle = handle
        self._timeout_s = timeout_s

    async def run_round(self, requests: Sequence[EpisodeRequest]) -> list[EpisodeRecord]:
        """Run one round there."""
        return await call_worker(
            self._handle, self._timeout_s, RolloutWorker.run_round, list(requests)
        )

    async def round_statistics(self) -> SlotTime:
        """Return rounds and slot time."""
        return await call_worker(
            self._handle, STATISTICS_DEADLINE_S, RolloutWorker.round_statistics
        )


class SynchronousRollouts:
    """The synchronous source: spawn, wait for the slowest, tear down, train, repeat.

    Args:
        pools: Share each round.
        stream: Hands out the groups.
        group_filter: Decides which groups carry a gradient.
        group_size: Episodes of one group.
        breaker: Holds rounds back, and stops the run, when the infrastructure is down.
        version: Weight version that the servers hold.
        clock: What the breaker's waits are measured with.
    """

    def __init__(
        self,
        pools: Sequence[RoundPool],
        stream: GroupStream,
        group_filter: GroupFilter,
        *,
        group_size: int,
        breaker: FaultBreaker,
        version: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self._clock: Clock = RealClock() if clock is None else clock
        self._pools = tuple(pools)
        self._stream = stream
        self._filter = group_filter
        self._group_size = group_size
        self._breaker = breaker
        self._version = version
        self._batches = itertools.count()
        self.num_completed = 0
        """Episodes that ended, faults included."""
        self._num_faults = 0
        self._busy_s = 0.0
        self._alive_s = 0.0

    async def prepare_batch(self, num_episodes: int, *, timeout_s: float) -> RolloutBatch:
        """Return the groups of one round that carry a gradient; a round without any is repeated.

        Raises:
            StarvedError: The breaker is open.
        """
        groups: list[GroupResult] = []
        while not groups:
            self._breaker.check()
            while not self._breaker.may_start(self._clock.time()):
                await self._clock.sleep(POLL_S)
            self._breaker.started(self._clock.time())
            async with asyncio.timeout(timeout_s):
                groups = await self.run_round(num_episodes)
        batch = RolloutBatch(
            groups, batch=next(self._batches), version=self._version, is_short=False
        )
        self._filter.taken(batch)
        return batch

    def advance(self, version: int) -> None:
        """Note the version of the next round."""
        self._version = version

    def release_budget(self) -> None:
        """Nothing is owed: a round's budget ends with the round."""

    def take_dropped(self) -> list[str]:
        """Return the episodes that ended up in no batch, each once."""
        return self._filter.take_dropped()

    def describe(self) -> str:
        """Return what the last groups were."""
        return self._filter.describe()

    async def metrics(self, seconds: float) -> dict[str, float]:
        """Return the figures of the rounds since the last call, and those of the filter."""
        rounds = [await pool.round_statistics() for pool in self._pools]
        busy_s, alive_s = sum(r.busy_s for r in rounds), sum(r.alive_s for r in rounds)
        busy, alive = busy_s - self._busy_s, alive_s - self._alive_s
        self._busy_s, self._alive_s = busy_s, alive_s
        return {
            "rollout/completed_episodes": float(self.num_completed),
            "rollout/faulted_episodes": float(self._num_faults),
            "idle/rollout_share": max(0.0, 1.0 - busy / alive) if alive > 0 else 0.0,
            "staleness/off_policyness_mean_versions": 0.0,
            "staleness/off_policyness_max_versions": 0.0,
            **self._filter.metrics(seconds),
        }

    async def run_round(self, num_episodes: int) -> list[GroupResult]:
        """Run one round over all pools; return its groups that carry a gradient."""
        requests = [
            request
            for _ in range(max(1, num_episodes // self._group_size))
            for request in self._stream.next_group()
        ]
        async with UnwrappedTaskGroup() as group:
            tasks = [
                group.create_task(_run_share(pool, share))
                for index, pool in enumerate(self._pools)
                if (share := requests[index :: len(self._pools)])
            ]
        records = [record for task in tasks for record in task.result()]
        self.num_completed += len(records)
        self._num_faults += sum(record.fault is not None for record in records)
        request_of = {request.episode_id: request for request in requests}
        now_s = self._clock.time()
        for record in records:
            self._breaker.note(request_of[record.episode_id], record, now_s)
        for request in requests:
            self._breaker.forget(request.group_id, now_s)
        return self._filter.accept_round(records)


async def _run_share(pool: RoundPool, requests: Sequence[EpisodeRequest]) -> list[EpisodeRecord]:
    return await pool.run_round(requests)
