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
from webrl.simulate import hazard_of_mean
from webrl.system.task_stream import HELD_OUT_SEEDS, TaskStream
from webrl.system.trajectory import EpisodeTask
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


def mix_task(mix: Mix) -> Task:
    """Return the page as a task: the state script is read once a step and counts."""
    page = load_task("miniwob/click-test-2")
    rows = json.dumps([[n, int(good)] for n, good in zip(mix.lengths, mix.endings, strict=True)])
    start = (
        f"(async () => {{ const started = await {page.start_script}; const rows = {rows};"
        " const [length, good] = rows[SEED % rows.length];"
        " window.mix = {left: length, good: good}; return started; })()"
    )
    state = (
        "(() => { window.mix.left -= 1; const done = window.mix.left <= 0;"
        " return {done: done, reward: done ? window.mix.good : 0, reason: null}; })()"
    )
    return msgspec.structs.replace(
        page, name=mix.name, max_steps=MAX_STEPS, start_script=start, state_script=state
    )


class MixStream(TaskStream):
    """Groups whose members differ in their seed, so that each has a length of its own."""

    def group(self, index: int) -> list[EpisodeRequest]:
        """Return the requests of group `index`."""
        found: list[EpisodeRequest] = []
        for request in super().group(index):
            payload = request.payload
            assert isinstance(payload, EpisodeTask)
            seed = HELD_OUT_SEEDS + index * 64 + request.member
            found.append(
                msgspec.structs.replace(
                    request, payload=msgspec.structs.replace(payload, seed=seed)
                )
            )
        return found
