"""`webrl rehearse`: a configuration's true topology on this machine, without its hardware."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from webrl.cli.command import Commands, add_json, add_settings, write_json
from webrl.config import WebRLConfig, load_config
from webrl.errors import ConfigError

if TYPE_CHECKING:
    from webrl.rehearse.scale import Scale

_DESCRIPTION = """\
Place the whole configuration on a Ray cluster of declared nodes on this machine, then run as much of
it as fits: the real controller, workers, browsers, pixel stores, weight groups, checkpoints and
restarts, with stand-ins for what needs devices (a narrow policy, ranks and servers without a model)
and for the world outside (sites and a judge with set latencies). Kill what you name, and read what
was lost. The exit code is 1 when something failed that was not asked for.
"""


def add_command(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "rehearse", help="run a large configuration's topology here", description=_DESCRIPTION
    )
    parser.add_argument("--config", required=True, help="packaged name or path of a TOML file")
    add = parser.add_argument
    add("--nodes", type=int, help="nodes of the declared cluster; default cluster.n_nodes")
    add("--cpus", type=int, default=96, help="CPUs that each node declares")
    add("--gpus", type=int, help="GPUs that each node declares; default cluster.n_gpus_per_node")
    add("--placement-only", action="store_true", help="run nothing")
    add("--divisor", type=int, help="run one in so many of everything; default: what fits")
    add(
        "--kill",
        action="append",
        default=[],
        metavar="KIND",
        help="what fails; `all` for each kind",
    )
    add("--updates", type=int, default=3, help="updates before the first failure")
    add("--update-s", type=float, default=1.0, help="seconds of one update")
    add("--token-s", type=float, default=0.01, help="seconds of one decode step")
    add("--prefill-s", type=float, default=0.05, help="seconds of one prefill")
    add("--site-latency-s", type=float, default=0.2, help="mean latency of the sites")
    add("--blocked-share", type=float, default=0.0, help="share of sites that shut robots out")
    add("--judge-latency-s", type=float, default=0.5, help="mean latency of the judge")
    add("--folder", type=Path, help="where everything is written; default below runs/")
    add("--seed", type=int, default=0, help="of what is drawn")
    add_json(parser)
    add_settings(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Rehearse and print."""
    config = load_config(arguments.config, arguments.overrides).config
    # Imported late: torch and transformers take seconds, and a mistyped key should not wait for them.
    from webrl.rehearse.rehearsal import (  # noqa: PLC0415
        KILLS,
        RehearsalPlan,
        rehearse,
        server_arguments,
    )
    from webrl.rehearse.report import as_json, describe  # noqa: PLC0415

    num_nodes = arguments.nodes or config.cluster.n_nodes
    plan = RehearsalPlan(
        config=config,
        scale=None if arguments.placement_only else _scale(config, arguments.divisor, num_nodes),
        num_nodes=num_nodes,
        num_cpus=arguments.cpus,
        num_gpus=config.cluster.n_gpus_per_node if arguments.gpus is None else arguments.gpus,
        kills=_kills(arguments.kill, KILLS),
        num_updates=arguments.updates,
        update_s=arguments.update_s,
        site_latency_s=arguments.site_latency_s,
        blocked_share=arguments.blocked_share,
        judge_latency_s=arguments.judge_latency_s,
        server_arguments=server_arguments(token_s=arguments.token_s, prefill_s=arguments.prefill_s),
        folder=(
            arguments.folder or Path("runs") / f"rehearsal-{datetime.now():%Y%m%d-%H%M%S}"
        ).resolve(),
        seed=arguments.seed,
    )
    found = rehearse(plan, console.print)
    console.print()
    console.print(describe(config, found))
    if arguments.json is not None:
        write_json(as_json(config, found), arguments.json, console)
    return int(bool(found.all_problems()))


def _scale(config: WebRLConfig, divisor: int | None, num_nodes: int) -> Scale:
    from webrl.rehearse.scale import check_memory, largest_scale, scaled  # noqa: PLC0415

    if divisor is None:
        return largest_scale(config, num_nodes=num_nodes)
    if divisor < 1:
        raise ConfigError(f"--divisor must be >= 1, got {divisor}. Use 1 for everything.")
    scale = scaled(config, divisor)
    check_memory(scale)
    return scale


def _kills(names: list[str], known: tuple[str, ...]) -> list[str]:
    """Return what fails, `all` spelled out; dashes stand for blanks.

    Raises:
        ConfigError: There is no such kind.
    """
    wanted: list[str] = []
    for name in names:
        kind = name.replace("-", " ")
        if kind == "all":
            wanted += known
        elif kind in known:
            wanted.append(kind)
        else:
            kinds = ", ".join(one.replace(" ", "-") for one in known)
            raise ConfigError(f"--kill must be one of {kinds}, or all, got {name!r}.")
    return wanted
