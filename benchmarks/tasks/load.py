"""How long a large set of tasks takes to be read, chosen and put in order.

    python benchmarks/tasks/load.py [LINES]

Writes a file in WebGym's format to a temporary folder, and prints the CPU seconds and the seconds of
each part. CPU seconds count here: a shared machine stretches the others.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from webrl.config import load_config
from webrl.launch import component_configs, run_tasks

ResultT = TypeVar("ResultT")

NUM_LINES = 292_000
"""Of the published data set."""


def write_set(path: Path, num_lines: int) -> None:
    """Write tasks of 1 to 8 facts on 30,000 sites, with two fields that this format has not."""
    rng = random.Random(0)
    with path.open("w") as file:
        for number in range(num_lines):
            facts = [f"The page of item {number} shows fact {k}" for k in range(rng.randint(1, 8))]
            line = {
                "task_id": f"t{number}",
                "task_name": f"Find item {number} and tell what it costs",
                "website": f"https://www.site{rng.randrange(30_000)}.example",
                "domain": "Lifestyle & Leisure",
                "subdomain": f"Shopping {rng.randrange(20)}",
                "difficulty": rng.randint(1, 9),
                "evaluator_reference": [{"id": 0, "description": fact} for fact in facts],
                "reference_answer": "19 dollars",
                "benchmark_name": "own",
                "level": 3,
            }
            file.write(json.dumps(line) + "\n")


def timed(what: str, action: Callable[[], ResultT]) -> ResultT:
    """Run an action and print what it took."""
    began, began_cpu = time.perf_counter(), time.process_time()
    result = action()
    seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    sys.stdout.write(f"{what:<24}{cpu:>8.2f} s of CPU{seconds:>8.2f} s\n")
    return result


def main() -> None:
    """Time each part."""
    num_lines = int(sys.argv[1]) if len(sys.argv) > 1 else NUM_LINES
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "set.jsonl"
        write_set(path, num_lines)
        keys = [f"tasks=[{{name='webgym:{path}'}}]", "judge.url=http://127.0.0.1:1/v1"]
        config = load_config("webgym_48_16", [*keys, "judge.model=judge"]).config
        timed("read, checked, chosen", lambda: run_tasks.train_tasks(config))
        timed("the same again", lambda: run_tasks.train_tasks(config))
        timed("for evaluation", lambda: run_tasks.test_tasks(config))
        stream = timed("put in order", lambda: component_configs.task_stream(config))
        timed("first group", stream.next_group)


if __name__ == "__main__":
    main()
