"""`python -m webrl.rehearse.outside`: the web and the judge of a rehearsal, in a process of their own.

It prints one line of JSON with both addresses once they answer, and ends when its standard input closes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from webrl.rehearse.judge import RehearsedJudge
from webrl.rehearse.site import RehearsedSite


@dataclass(frozen=True, kw_only=True, slots=True)
class OutsideConfig:
    """What the outside world of a rehearsal is like."""

    tasks: str
    """File that receives the tasks, in WebGym's format."""
    num_tasks: int = 200
    """How many."""
    num_sites: int = 50
    """Sites that they are on."""
    site_latency_s: float = 0.2
    """Mean wait before a page."""
    blocked_share: float = 0.1
    """Share of the sites that shut robots out."""
    silent_share: float = 0.002
    """Share of the pages that never come."""
    judge_latency_s: float = 0.5
    """Mean wait before an answer of the judge."""
    judge_error_share: float = 0.05
    """Share of requests that the judge fails."""
    seed: int = 0
    """Seed of all that is drawn."""

    def arguments(self) -> list[str]:
        """Return the command line that says so."""
        return [
            f"--{name.replace('_', '-')}={getattr(self, name)}"
            for name in self.__dataclass_fields__
        ]


def _config(arguments: list[str] | None) -> OutsideConfig:
    parser = argparse.ArgumentParser(prog="python -m webrl.rehearse.outside", description=__doc__)
    for name, field in OutsideConfig.__dataclass_fields__.items():
        default = None if name == "tasks" else field.default
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            default=default,
            required=default is None,
            type=str if default is None else type(default),
        )
    values: Mapping[str, object] = vars(parser.parse_args(arguments))
    return OutsideConfig(**values)  # pyright: ignore[reportArgumentType]


async def _serve(config: OutsideConfig) -> None:
    site = RehearsedSite(
        num_sites=config.num_sites,
        latency_s=config.site_latency_s,
        blocked_share=config.blocked_share,
        silent_share=config.silent_share,
        seed=config.seed,
    )
    judge = RehearsedJudge(
        latency_s=config.judge_latency_s, error_share=config.judge_error_share, seed=config.seed
    )
    async with site, judge:
        site.write_tasks(Path(config.tasks), config.num_tasks)
        sys.stdout.write(json.dumps({"site": site.base_url, "judge": judge.url}) + "\n")
        sys.stdout.flush()
        closed = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin, closed.set)
        await closed.wait()


def main(arguments: list[str] | None = None) -> int:
    """Serve until standard input closes; return the exit code."""
    asyncio.run(_serve(_config(arguments)))
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())
