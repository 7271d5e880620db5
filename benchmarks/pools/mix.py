"""The workload: episodes whose lengths are fixed beforehand, whatever the policy does.

A real MiniWoB++ page whose episode ends after a number of actions that its seed fixes; the lengths
follow the published mix (a success takes 5.1 steps, a failure 12.5, none more than 30) and come from
a table of a fixed seed, so that every pool runs the same episodes. The wait before each action is the
configuration's `env.page_latency_s`, lognormal, fixed by seed and step.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

import msgspec
from awrl_rollout import EpisodeRequest
from webrl.rollout.task_stream import HELD_OUT_SEEDS, TaskStream
from webrl.rollout.trajectory import EpisodeTask
from webrl.simulate import hazard_of_mean
from webrl.tasks import Task, load_task

NUM_LENGTHS = 1024
"""Entries of the table; seeds go round in it."""
SUCCESS_SHARE = 0.42
MAX_STEPS = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Mix:
    """Lengths and endings by seed."""

    name: str
    lengths: tuple[int, ...]
    endings: tuple[bool, ...]

    @property
    def mean_steps(self) -> float:
        """Mean length."""
        return sum(self.lengths) / len(self.lengths)


def published_mix(seed: int = 0) -> Mix:
    """Return lengths of the published mix: geometric, cut at 30, with the published means."""
    draw = random.Random(seed)
    hazards = {good: hazard_of_mean(mean, MAX_STEPS) for good, mean in ((True, 5.1), (False, 12.5))}
    endings = [index < SUCCESS_SHARE * NUM_LENGTHS for index in range(NUM_LENGTHS)]
    draw.shuffle(endings)
    lengths: list[int] = []
    for good in endings:
        steps = 1
        while steps < MAX_STEPS and draw.random() >= hazards[good]:
            steps += 1
        lengths.append(steps)
    return Mix(name="mix", lengths=tuple(lengths), endings=tuple(endings))


def uniform_mix(num_steps: int, seed: int = 0) -> Mix:
    """Return equal lengths: what asynchrony has little to gain from."""
    draw = random.Random(seed)
    endings = tuple(draw.random() < SUCCESS_SHARE for _ in range(NUM_LENGTHS))
    return Mix(name="uniform", lengths=(num_steps,) * NUM_LENGTHS, endings=endings)


def mix_tasks(mix: Mix) -> list[Task]:
    """Return the page as one task a length: the limit on actions ends an episode, nothing else does.

    An action that can't be parsed counts like any other, so no policy shortens or stretches a run.
    """
    page = load_task("miniwob/click-test-2")
    endings = json.dumps([int(good) for good in mix.endings])
    start = (
        f"(async () => {{ const started = await {page.start_script}; const endings = {endings};"
        " window.isGood = endings[SEED % endings.length]; return started; })()"
    )
    state = "(() => ({done: false, reward: window.isGood, reason: null}))()"
    return [
        msgspec.structs.replace(
            page,
            name=f"{mix.name}-{length}",
            max_steps=length,
            start_script=start,
            state_script=state,
        )
        for length in sorted(set(mix.lengths))
    ]


def stream_of(mix: Mix) -> type[TaskStream]:
    """Return a stream of groups whose members differ in their seed, so each has its own length."""

    class MixStream(TaskStream):
        def group(self, index: int) -> list[EpisodeRequest]:
            """Return the requests of group `index`."""
            return [self._own(request, index) for request in super().group(index)]

        def _own(self, request: EpisodeRequest, index: int) -> EpisodeRequest:
            payload = request.payload
            assert isinstance(payload, EpisodeTask)
            seed = HELD_OUT_SEEDS + index * 64 + request.member
            length = mix.lengths[seed % NUM_LENGTHS]
            definition = msgspec.structs.replace(
                payload.definition, name=f"{mix.name}-{length}", max_steps=length
            )
            own = msgspec.structs.replace(payload, seed=seed, definition=definition)
            return msgspec.structs.replace(request, payload=own)

    return MixStream
