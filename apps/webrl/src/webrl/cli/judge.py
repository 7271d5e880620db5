"""`webrl judge`: the kept episodes of a run, judged again by another model or with another prompt."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

import msgspec
from awrl_rollout import UnwrappedTaskGroup
from rich.console import Console

from webrl.cli.command import Commands, add_json, add_settings, write_json
from webrl.config import JudgeSection, load_config
from webrl.errors import JudgeError, PreflightError
from webrl.judge import (
    Agreement,
    Judge,
    JudgedEpisode,
    JudgeUsage,
    Verdict,
    agreement,
    criteria_pairs,
    label_of,
    read_judged,
)

AT_ONCE = 16
"""Episodes that are judged at one moment; `judge.max_concurrent` bounds their requests."""


class JudgedAgain(msgspec.Struct, frozen=True, kw_only=True):
    """What judging again found, and what was used."""

    models: dict[str, str]
    """Which model was asked, by kind of question."""
    models_before: dict[str, list[str]]
    """Which ones were asked during the run."""
    instructions: str | None
    """`judge.instructions`."""
    num_episodes: int
    """Episodes that were judged again."""
    num_unjudged_before: int
    """Of them, those without a verdict during the run."""
    num_unjudged: int
    """Those without a verdict now."""
    episodes: Agreement
    """On success, failure and blocked; rows are the run's verdicts, columns the new ones."""
    criteria: Agreement
    """On the single criteria."""
    usage: JudgeUsage
    """What it took."""


def add_command(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "judge",
        help="judge a run's episodes again",
        description="Judge the kept episodes of a run again, on the same stored evidence, and print "
        "how far the two judges agree. Say what is to differ: judge.model=NAME, "
        "judge.fact_model=NAME, judge.instructions=TEXT.",
    )
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("--episodes", type=int, help="judge only so many; all when left out")
    add_json(parser)
    add_settings(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Judge again and print."""
    file = arguments.run_folder / "config.toml"
    if not file.is_file():
        raise PreflightError(
            f"RUN must be a run's folder, got {str(arguments.run_folder)!r} without a config.toml. "
            "Give e.g. runs/NAME."
        )
    if arguments.episodes is not None and arguments.episodes < 1:
        raise PreflightError(f"--episodes must be >= 1, got {arguments.episodes}. Use e.g. 100.")
    config = load_config(str(file), arguments.overrides).config.judge
    if config.url is None:
        raise PreflightError("judge.url must be set to judge, got nothing. Add judge.url=ADDRESS.")
    kept = list(read_judged(arguments.run_folder))[: arguments.episodes]
    if not kept:
        raise PreflightError(
            f"RUN must hold judged episodes, got none in {str(arguments.run_folder / 'judged')!r}. "
            "They are kept where judge.kept_bytes is not 0."
        )
    found = compared(config, kept, asyncio.run(judge_again(config, kept)))
    if arguments.json is not None:
        write_json(msgspec.to_builtins(found), arguments.json, console)
    else:
        _print(found, console)
    return 0 if found.num_unjudged < found.num_episodes else 1


async def judge_again(
    config: JudgeSection, kept: Sequence[JudgedEpisode]
) -> list[Verdict | JudgeError]:
    """Return a new verdict on each episode, or why there is none.

    Raises:
        JudgeError: The environment lacks the key.
    """
    places = asyncio.Semaphore(AT_ONCE)

    async def one(judge: Judge, episode: JudgedEpisode) -> Verdict | JudgeError:
        async with places:
            try:
                return await judge.judge(episode.evidence)
            except JudgeError as error:
                return error

    async with aclosing(Judge(config)) as judge, UnwrappedTaskGroup() as group:
        tasks = [group.create_task(one(judge, episode)) for episode in kept]
    return [task.result() for task in tasks]


def compared(
    config: JudgeSection, kept: Sequence[JudgedEpisode], again: Sequence[Verdict | JudgeError]
) -> JudgedAgain:
    """Return how far the new verdicts agree with the run's."""
    verdicts = [found if isinstance(found, Verdict) else None for found in again]
    both = [
        (episode.verdict, found)
        for episode, found in zip(kept, verdicts, strict=True)
        if episode.verdict is not None and found is not None
    ]
    usages = [found.usage for found in verdicts if found is not None and found.usage is not None]
    before: dict[str, set[str]] = {}
    for episode in kept:
        for kind, model in episode.models.items():
            before.setdefault(kind, set()).add(model)
    return JudgedAgain(
        models=config.models(),
        models_before={kind: sorted(models) for kind, models in before.items()},
        instructions=config.instructions,
        num_episodes=len(kept),
        num_unjudged_before=sum(episode.verdict is None for episode in kept),
        num_unjudged=sum(found is None for found in verdicts),
        episodes=agreement([(label_of(old), label_of(new)) for old, new in both]),
        criteria=agreement([pair for old, new in both for pair in criteria_pairs(old, new)]),
        usage=JudgeUsage(
            num_requests=sum(usage.num_requests for usage in usages),
            tokens_in=sum(usage.tokens_in for usage in usages),
            tokens_out=sum(usage.tokens_out for usage in usages),
            cost=sum(usage.cost for usage in usages),
            wait_s=sum(usage.wait_s for usage in usages),
        ),
    )


def _print(found: JudgedAgain, console: Console) -> None:
    for kind, model in found.models.items():
        console.print(f"{kind}: {model}, before {', '.join(found.models_before.get(kind, ['?']))}")
    if found.instructions:
        console.print(f"instructions: {found.instructions}")
    console.print(
        f"{found.num_episodes} episodes; without a verdict: {found.num_unjudged_before} before, "
        f"{found.num_unjudged} now"
    )
    for name, result in (("episodes", found.episodes), ("criteria", found.criteria)):
        if result.share is None:
            console.print(f"{name}: none to compare")
            continue
        kappa = "undefined" if result.kappa is None else f"{result.kappa:.3f}"
        console.print(
            f"{name}: {result.num_compared} compared, agreement {result.share:.3f}, kappa {kappa}"
        )
        labels = list(result.confusion)
        console.print(" " * 16 + "".join(f"{label:>10}" for label in labels) + "  now")
        for row in labels:
            cells = "".join(f"{result.confusion[row][column]:>10}" for column in labels)
            console.print(f"  {row:<14}{cells}")
    usage = found.usage
    console.print(
        f"{usage.num_requests} requests, {usage.tokens_in} tokens in, {usage.tokens_out} out, "
        f"cost {usage.cost:.4f}"
    )
