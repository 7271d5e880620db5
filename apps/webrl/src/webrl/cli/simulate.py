"""`webrl simulate`: what a configuration would reach, on paper, by the code that would run it."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from webrl.cli.command import STDOUT, Commands, add_json, add_settings, write_json
from webrl.config import WebRLConfig, load_config
from webrl.errors import ConfigError

if TYPE_CHECKING:
    from webrl.simulate import Assumptions

_PREFIX = "model."
_SWEEP_STEPS = 16
"""Steps of each point of a sweep: enough to leave the warm-up behind at eta 4."""
_DESCRIPTION = """\
Run the ledger, the executors, the controller and the synchronous pool of a run under a virtual
clock; servers, browsers, updates and broadcasts are models. Latencies come from the model
(lognormal) or, with --trace, from a recorded run, which is then also compared with. Keys that begin
with "model." set an assumption; the report lists all of them. All others set the configuration.
"""


def add_command(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "simulate", help="predict throughput and staleness", description=_DESCRIPTION
    )
    parser.add_argument("--config", required=True, help="packaged name or path of a TOML file")
    parser.add_argument("--trace", type=Path, metavar="RUN", help="folder of a recorded run")
    parser.add_argument(
        "--set", action="append", default=[], metavar="key=value", help="a setting; repeatable"
    )
    parser.add_argument(
        "--sweep", action="store_true", help="also try splits of the devices and values of eta"
    )
    parser.add_argument(
        "--sweep-steps", type=int, default=_SWEEP_STEPS, help="steps of each point of the sweep"
    )
    parser.add_argument("--timeline", type=Path, metavar="FILE.svg", help="draw who works when")
    add_json(parser)
    add_settings(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Simulate and print."""
    settings: list[str] = [*arguments.overrides, *arguments.set]
    config = load_config(
        arguments.config, [text for text in settings if not text.startswith(_PREFIX)]
    ).config
    if config.is_synchronous:
        raise ConfigError(
            "cluster.n_inference_servers must be > 0 to simulate, got 0. The synchronous side is "
            "made from the asynchronous configuration: give that one."
        )
    # The rollout system imports ray and torch, which take seconds: only this command pays for them.
    from webrl.simulate import resolve_assumptions  # noqa: PLC0415

    chosen = [text.removeprefix(_PREFIX) for text in settings if text.startswith(_PREFIX)]
    assumptions = resolve_assumptions(config, chosen, arguments.trace)
    place: str | None = arguments.json
    shown = Console(quiet=True) if place == STDOUT else console
    results = _both_modes(arguments, config, assumptions, shown)
    if arguments.sweep:
        results["sweep"] = _sweep(config, assumptions, arguments.sweep_steps, shown)
    if place is not None:
        write_json(results, place, console)
    return 0


def _both_modes(
    arguments: argparse.Namespace,
    config: WebRLConfig,
    assumptions: Assumptions,
    console: Console,
) -> dict[str, object]:
    from webrl.simulate import (  # noqa: PLC0415
        assumptions_table,
        figures_table,
        measured_table,
        simulate_asynchronous,
        simulate_synchronous,
        write_timeline,
    )

    trace, model = assumptions.trace, assumptions.model
    if trace is not None:
        config = replace(config, total_steps=len(trace.steps))
    plans = None if trace is None else trace.plans
    console.print(assumptions_table(model, is_traced=trace is not None))
    recordings = [
        simulate_asynchronous(config, model, plans),
        simulate_synchronous(config, model, plans),
    ]
    asynchronous, synchronous = (recording.figures() for recording in recordings)
    console.print(figures_table(asynchronous, synchronous))
    results: dict[str, object] = {
        "model": asdict(model),
        "asynchronous": asynchronous.as_dict(),
        "synchronous": synchronous.as_dict(),
    }
    if trace is not None:
        measured = trace.measured(recordings[0].num_warmup)
        console.print(measured_table(asynchronous, measured))
        results["measured"] = asdict(measured)
    if arguments.timeline is not None:
        arguments.timeline.parent.mkdir(parents=True, exist_ok=True)
        write_timeline(arguments.timeline, recordings)
        console.print(f"timeline: {arguments.timeline}")
    return results


def _sweep(
    config: WebRLConfig, assumptions: Assumptions, num_steps: int, console: Console
) -> list[dict[str, object]]:
    from webrl.simulate import sweep, sweep_table  # noqa: PLC0415

    points = list(sweep(config, assumptions, num_steps))
    console.print(sweep_table(points))
    return [
        {
            "servers": point.layout.num_servers,
            "ranks": point.layout.num_ranks,
            "eta": point.eta,
            **point.figures.as_dict(),
        }
        for point in points
    ]
