"""What the best policy that never looks at the screen scores, task by task.

    .venv/bin/python benchmarks/browser/blind.py --seeds 512

A blind policy is a fixed sequence of clicks. For each seed the oracle plays the episode, and at
each of its steps every point of a 5-pixel lattice is asked whether a click there would be right.
The score is the share of seeds in which the best point of each step (chosen one step after the
other, among the seeds that are still right) is right at every step. A click that misses is
counted as the end, which it is not on every page: the score is then a little too low.
"""

from __future__ import annotations

import argparse
import asyncio
import json

import numpy as np
from numpy.typing import NDArray
from webrl.actions import LeftClick, to_grid
from webrl.browser import BrowserConfig, BrowserPool, BrowserSession
from webrl.tasks import ORACLE_TASKS, Task, load_tasks, oracle, target_map

LATTICE = 5
"""Distance of the lattice's points in CSS pixels."""


async def _play(
    session: BrowserSession, task: Task, seed: int
) -> tuple[list[NDArray[np.bool_]], bool]:
    """Return the right points of each step, and whether the oracle earned the reward."""
    width, height = task.viewport.width, task.viewport.height
    await session.reset(task, seed)
    maps: list[NDArray[np.bool_]] = []
    while True:
        bits = await session.evaluate(target_map(task, LATTICE))
        point = await session.evaluate(oracle(task))
        if not isinstance(point, dict):
            return maps, False
        maps.append(np.array([bit == "1" for bit in str(bits)]))
        outcome = await session.step(
            LeftClick(*to_grid(point["x"], point["y"], width=width, height=height))
        )
        if outcome.is_done:
            return maps, outcome.reward == 1.0


def _blind_score(maps: list[list[NDArray[np.bool_]]]) -> float:
    """Return the greedy fixed sequence's score; a shorter episode ends at its last step."""
    alive = np.ones(len(maps), dtype=bool)
    won = 0
    for step in range(max(map(len, maps))):
        here = [i for i in np.flatnonzero(alive) if len(maps[i]) > step]
        if not here:
            break
        stacked = np.stack([maps[i][step] for i in here])
        best = int(stacked.sum(axis=0).argmax())
        alive[:] = False
        for row, i in enumerate(here):
            if stacked[row, best]:
                is_end = len(maps[i]) == step + 1
                won += is_end
                alive[i] = not is_end
    return won / len(maps)


async def _play_all(
    sessions: list[BrowserSession], task: Task, seeds: range
) -> list[tuple[list[NDArray[np.bool_]], bool]]:
    """Play every seed, spread over the sessions."""

    async def some(
        session: BrowserSession, own: range
    ) -> list[tuple[list[NDArray[np.bool_]], bool]]:
        return [await _play(session, task, seed) for seed in own]

    async with asyncio.TaskGroup() as group:
        runs = [
            group.create_task(some(session, seeds[number :: len(sessions)]))
            for number, session in enumerate(sessions)
        ]
    return [played for run in runs for played in run.result()]


async def _measure(options: argparse.Namespace) -> None:
    async with BrowserPool(BrowserConfig(num_slots=options.sessions)) as pool:
        sessions = [await pool.session() for _ in range(options.sessions)]
        for task in load_tasks(options.task or ORACLE_TASKS):
            seeds = range(options.first, options.first + options.seeds)
            played = await _play_all(sessions, task, seeds)
            lengths = [len(maps) for maps, _ in played if maps]
            first_maps = np.stack([maps[0] for maps, _ in played if maps])
            row = {
                "task": task.full_name,
                "blind_score": round(_blind_score([maps for maps, _ in played]), 3),
                "blind_first_click": round(float(first_maps.mean(axis=0).max()), 3),
                "target_area_share": round(float(first_maps.mean()), 4),
                "oracle_score": round(float(np.mean([won for _, won in played])), 3),
                "oracle_steps": [min(lengths), round(float(np.mean(lengths)), 2), max(lengths)],
                "max_steps": task.max_steps,
                "seeds": len(played),
            }
            print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=512)
    parser.add_argument("--first", type=int, default=1_000_000, help="first seed")
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--task", action="append", default=[])
    asyncio.run(_measure(parser.parse_args()))


if __name__ == "__main__":
    main()
