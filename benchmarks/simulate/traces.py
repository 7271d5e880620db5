"""Recorded pools beside their simulation, both predicted from the asynchronous run alone.

    python benchmarks/pools/measure.py --slots 16 --etas 2 --keep RUNS --out pools-16.json
    python benchmarks/simulate/traces.py RUNS/mode-0 RUNS/mode-1 --name pools-16

Episodes, updates, broadcasts and dispatch are those of the asynchronous run; the synchronous pool's own times
are not looked at, but for the `--open` seconds that it needs to start one session: a round of 16 slots on
two cores spent 1.96 s on that.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path

from webrl.config import load_config
from webrl.simulate import (
    SimulationModel,
    read_trace,
    resolve_assumptions,
    simulate_asynchronous,
    simulate_synchronous,
)

BASELINES = Path(__file__).parents[1] / "baselines"


def main() -> None:
    """Simulate both modes and write one file for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("asynchronous", type=Path)
    parser.add_argument("synchronous", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--open", type=float, default=0.12, help="seconds to start one session")
    parser.add_argument(
        "--at-once", type=int, default=1, help="sessions that start at the same time"
    )
    arguments = parser.parse_args()
    config = load_config(str(arguments.asynchronous / "config.toml")).config
    assumptions = resolve_assumptions(
        config,
        [f"session.open_s={arguments.open}", f"session.opens_at_once={arguments.at_once}"],
        arguments.asynchronous,
    )
    trace = assumptions.trace
    assert trace is not None
    other = read_trace(arguments.synchronous, SimulationModel())
    BASELINES.mkdir(exist_ok=True)
    for mode, simulate, run in (
        ("asynchronous", simulate_asynchronous, trace),
        ("synchronous", simulate_synchronous, other),
    ):
        one = replace(config, total_steps=len(run.steps))
        recording = simulate(one, assumptions.model, trace.plans)
        num_warmup = recording.num_warmup if mode == "asynchronous" else 1
        recording.num_warmup = num_warmup
        result = {
            "compared": mode,
            "note": f"{mode} pool, predicted from the asynchronous run",
            mode: recording.figures().as_dict(),
            "measured": asdict(run.measured(num_warmup)),
        }
        path = BASELINES / f"simulate-{arguments.name}-{mode}.json"
        path.write_text(json.dumps(result, indent=1) + "\n")
        for key in ("episodes_per_h", "step_s", "slots_idle", "trainer_idle"):
            print(mode, key, f"{result[mode][key]:.4g}", f"{result['measured'][key]:.4g}")


if __name__ == "__main__":
    main()
