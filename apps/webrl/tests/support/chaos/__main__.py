"""`make chaos`: train, kill processes of every kind at random moments, and judge the run.

Moments and targets follow from `--seed`, as far as the machine's own timing lets them.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from webrl.rehearse.injection import ChaosOutcome, Injection, inject_faults, train_command
from webrl.rehearse.targets import KINDS
from webrl.rehearse.verdict import RunVerdict, examine

_SETTINGS = (
    "total_steps=1000000",
    "time_limit_s=none",
    "recover.max_restarts=1000000",
    "checkpoint.save_every=3",
    "logging.tracker=none",
)
"""A run that only Ctrl-C ends, and that loses some work with its trainer; given ones win."""

_OWNED = ("run_dir", "seed", "total_steps", "time_limit_s")
"""Settings that this command decides: the verdict looks for the run where it was put."""

_LONGEST_DELAY_S = 6.0
"""A fault is injected up to this long after a trained version: anywhere in one or two steps."""

_OVERLAP = 0.2
"""Share of faults that are injected while the run still recovers from the one before."""


def random_injections(rng: random.Random, seconds: float) -> Iterator[Injection]:
    """Yield injections for some seconds: all kinds in an order drawn anew, each at a drawn moment."""
    deadline = time.monotonic() + seconds
    while True:
        for kind in rng.sample(KINDS, len(KINDS)):
            if time.monotonic() >= deadline:
                return
            yield Injection(
                kind=kind,
                delay_s=rng.uniform(0.0, _LONGEST_DELAY_S),
                num_versions=0 if rng.random() < _OVERLAP else 1,
            )


def report(outcome: ChaosOutcome, verdict: RunVerdict, console: Console) -> int:
    """Print what was killed, how it went on and what is wrong; return the exit code."""
    table = Table("killed", "times", "median s to the next version", "longest")
    for kind in KINDS:
        faults = [fault for fault in outcome.faults if fault.kind == kind]
        waits = [fault.recovered_s for fault in faults if fault.recovered_s is not None]
        shown = (f"{statistics.median(waits):.1f}", f"{max(waits):.1f}") if waits else ("-", "-")
        table.add_row(kind, str(len(faults)), *shown)
    console.print(table)
    console.print(
        f"{verdict.num_updates} updates from {verdict.num_episodes} episodes; trained on twice "
        f"{verdict.num_twice}; off-policyness at most {verdict.max_off_policyness} of "
        f"{verdict.bound}; steps broken {verdict.num_broken_steps}; out of the data order "
        f"{verdict.num_misplaced}; groups left out {verdict.num_left_out}, under way at most "
        f"{verdict.most_left_out}"
    )
    problems = [*outcome.problems, *verdict.problems]
    for problem in problems:
        console.print(f"PROBLEM {problem}")
    console.print("no problem found" if not problems else f"{len(problems)} problems")
    return int(bool(problems))


def main(words: list[str]) -> int:
    """Run; return 1 when something is wrong."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="how long faults are injected")
    parser.add_argument("--seed", type=int, default=0, help="of moments and targets")
    parser.add_argument("--config", default="laptop", help="as for webrl train")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings of the run")
    options = parser.parse_args(words)
    for setting in options.overrides:
        if (key := setting.partition("=")[0].strip()) in _OWNED:
            parser.error(
                f"{key} must be left to this command, got {setting!r}. Use --seed, --seconds."
            )
    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    run_dir = Path("runs") / f"chaos-{datetime.now():%Y%m%d-%H%M%S}"
    rng = random.Random(options.seed)
    arguments = [
        *("--config", options.config, f"run_dir={run_dir}", f"seed={options.seed}"),
        *(*_SETTINGS, *options.overrides),
    ]
    outcome = asyncio.run(
        inject_faults(
            train_command(arguments, run_dir),
            random_injections(rng, options.seconds),
            rng=rng,
            show=console.print,
        )
    )
    return report(outcome, examine(run_dir), console)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
