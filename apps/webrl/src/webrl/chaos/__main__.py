"""`python -m webrl.chaos`: train, kill processes of every kind at random moments, and judge the run.

Moments and victims follow from `--seed`, as far as the machine's own timing lets them.
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

from webrl.chaos.torment import Blow, Outcome, torment
from webrl.chaos.verdict import Verdict, examine
from webrl.chaos.victims import KINDS

_SETTINGS = (
    "total_steps=1000000",
    "time_limit_s=none",
    "recover.max_restarts=1000000",
    "checkpoint.save_every=3",
    "logging.tracker=none",
)
"""A run that only Ctrl-C ends, and that loses some work with its trainer; given ones win."""

_LONGEST_DELAY_S = 6.0
"""A blow falls up to this long after a trained version: anywhere in a step or two of a laptop."""

_OVERLAP = 0.2
"""Share of blows that fall while the run still recovers from the one before."""


def random_blows(rng: random.Random, seconds: float) -> Iterator[Blow]:
    """Yield blows until time is over: all kinds in an order drawn anew, each at a moment drawn.

    Args:
        rng: Draws.
        seconds: From now on.
    """
    deadline = time.monotonic() + seconds
    while True:
        for kind in rng.sample(KINDS, len(KINDS)):
            if time.monotonic() >= deadline:
                return
            yield Blow(
                kind=kind,
                delay_s=rng.uniform(0.0, _LONGEST_DELAY_S),
                num_versions=0 if rng.random() < _OVERLAP else 1,
            )


def report(outcome: Outcome, verdict: Verdict, console: Console) -> int:
    """Print what was killed, how it went on and what is wrong; return the exit code."""
    table = Table("killed", "times", "median s to the next version", "longest")
    for kind in KINDS:
        strikes = [strike for strike in outcome.strikes if strike.kind == kind]
        waits = [strike.recovered_s for strike in strikes if strike.recovered_s is not None]
        shown = (f"{statistics.median(waits):.1f}", f"{max(waits):.1f}") if waits else ("-", "-")
        table.add_row(kind, str(len(strikes)), *shown)
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
    parser = argparse.ArgumentParser(prog="python -m webrl.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="how long blows fall")
    parser.add_argument("--seed", type=int, default=0, help="of moments and victims")
    parser.add_argument("--config", default="laptop", help="as for webrl train")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings of the run")
    options = parser.parse_args(words)
    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    run_dir = Path("runs") / f"chaos-{datetime.now():%Y%m%d-%H%M%S}"
    rng = random.Random(options.seed)
    arguments = [
        *("--config", options.config, f"run_dir={run_dir}", f"seed={options.seed}"),
        *(*_SETTINGS, *options.overrides),
    ]
    outcome = asyncio.run(
        torment(
            arguments,
            run_dir,
            random_blows(rng, options.seconds),
            rng=rng,
            show=console.print,
        )
    )
    return report(outcome, examine(run_dir), console)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
