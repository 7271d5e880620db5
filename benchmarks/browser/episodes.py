"""Episodes a second of the browser layer alone, and what they cost in processor time.

    .venv/bin/python benchmarks/browser/episodes.py --sessions 4 --episodes 800

One episode: reset with a fresh seed, screenshot, one click, state. The click is random, as a
policy's first ones are; nothing but the browser layer runs. Processor time is that of this process,
the driver and every browser process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from collections import Counter

import psutil
from webrl.actions import LeftClick
from webrl.browser import BrowserConfig, BrowserPool, BrowserSession
from webrl.tasks import Task, load_tasks


class ProcessorTime:
    """Processor seconds by kind of process, those of processes that ended meanwhile included."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[str, float]] = {}

    def sample(self) -> Counter[str]:
        """Return the seconds so far."""
        own = psutil.Process()
        for process in (own, *own.children(recursive=True)):
            try:
                times, line = process.cpu_times(), " ".join(process.cmdline())
            except psutil.Error:
                continue
            kind = "browser" if "chrom" in line else "driver"
            for name in ("renderer", "gpu-process", "utility", "zygote"):
                if f"--type={name}" in line:
                    kind = name
            kind = "python" if process.pid == own.pid else kind
            self._seen[process.pid] = (kind, times.user + times.system)
        total: Counter[str] = Counter()
        for kind, seconds in self._seen.values():
            total[kind] += seconds
        return total

    async def watch(self) -> None:
        """Sample twice a second, so that little of a process that ends is missed."""
        while True:
            self.sample()
            await asyncio.sleep(0.5)


async def _episodes(session: BrowserSession, tasks: list[Task], seeds: range, siblings: int) -> int:
    steps = 0
    for seed in seeds:
        draw = random.Random(seed)
        instance = seed // siblings
        await session.reset(tasks[instance % len(tasks)], instance)
        is_done = False
        while not is_done:
            click = LeftClick(draw.randint(0, 999), draw.randint(220, 930))
            is_done = (await session.step(click)).is_done
            steps += 1
    return steps


async def _measure(options: argparse.Namespace) -> dict[str, object]:
    tasks = load_tasks(options.task)
    config = BrowserConfig(
        num_slots=options.sessions,
        screenshot_format=options.format,
        extra_args=tuple(options.arg),
        share_first_screenshot=options.share,
    )
    seeds = range(1_000_000, 1_000_000 + options.episodes)
    async with BrowserPool(config) as pool:
        sessions = [await pool.session() for _ in range(options.sessions)]
        async with asyncio.TaskGroup() as group:
            for number, session in enumerate(sessions):
                group.create_task(_episodes(session, tasks, range(number, 80, options.sessions), 1))
        cpu = ProcessorTime()
        before, started = cpu.sample(), time.perf_counter()
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(cpu.watch())
            runs = [
                group.create_task(
                    _episodes(session, tasks, seeds[n :: options.sessions], options.siblings)
                )
                for n, session in enumerate(sessions)
            ]
            steps = sum([await run for run in runs])
            watch.cancel()
        elapsed = time.perf_counter() - started
        spent = cpu.sample() - before
        count = len(seeds)
    return {
        "sessions": options.sessions,
        "tasks": options.task,
        "format": options.format,
        "args": options.arg,
        "siblings": options.siblings,
        "shared_first_screenshot": options.share,
        "episodes": count,
        "episodes_per_s": round(count / elapsed, 1),
        "steps_per_s": round(steps / elapsed, 1),
        "cpu_ms_per_episode": round(sum(spent.values()) * 1000 / count, 2),
        "cpu_ms_by_process": {k: round(v * 1000 / count, 2) for k, v in spent.most_common()},
        "load_average": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--episodes", type=int, default=800)
    parser.add_argument("--task", action="append", default=[])
    parser.add_argument("--siblings", type=int, default=1, help="episodes of each seed")
    parser.add_argument("--share", action="store_true", help="share the first screenshot")
    parser.add_argument("--format", default="png")
    parser.add_argument("--arg", action="append", default=[], help="switch for the browser")
    options = parser.parse_args()
    options.task = options.task or ["miniwob/click-test-2"]
    print(json.dumps(asyncio.run(_measure(options))))


if __name__ == "__main__":
    main()
