"""What a run's files say about episodes that were lost, repeated, too old, or out of order.

Invariant: only files that every run writes are read, so any run can be examined, at any time.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webrl.config import WebRLConfig, load_config
from webrl.launch import component_configs
from webrl.rollout.trajectory import EpisodeTask


@dataclass(frozen=True, kw_only=True, slots=True)
class RunVerdict:
    """Counts over one run; `problems` says which of them must not be."""

    num_updates: int
    """Updates that the run's weights come from."""
    num_episodes: int
    """Episodes that those were computed from."""
    num_twice: int
    """Episodes in two updates."""
    max_off_policyness: int
    """Largest staleness of an episode, in versions."""
    bound: int
    """eta, which that must not exceed."""
    num_broken_steps: int
    """Steps that are missing or doubled in `metrics.jsonl` or `batches.jsonl`."""
    num_misplaced: int
    """Episodes with another task or seed than the data order has at their place."""
    num_left_out: int
    """Groups of the data order before the last one begun, of which no episode ended."""
    most_left_out: int
    """Groups that may be under way at the end; more of them were lost."""

    @property
    def problems(self) -> list[str]:
        """Return one sentence for each count that must not be."""
        sentences = (
            (self.num_twice, f"{self.num_twice} episodes were trained on twice"),
            (
                self.max_off_policyness > self.bound,
                f"an episode was {self.max_off_policyness} versions old, eta is {self.bound}",
            ),
            (self.num_broken_steps, f"{self.num_broken_steps} steps are missing or doubled"),
            (self.num_misplaced, f"{self.num_misplaced} episodes are out of the data order"),
            (
                self.num_left_out > self.most_left_out,
                f"{self.num_left_out} groups of the data order are left out, at most "
                f"{self.most_left_out} can be under way",
            ),
        )
        return [sentence for is_wrong, sentence in sentences if is_wrong]


def examine(run_dir: Path) -> RunVerdict:
    """Read the files of a run that has ended, or was killed.

    Args:
        run_dir: Its folder.

    Raises:
        ConfigError: There is no configuration in it.
        OSError: A file is missing.
    """
    config = load_config(str(run_dir / "config.toml")).config
    batches = _lines(run_dir / "batches.jsonl")
    groups = _lines(run_dir / "episodes.jsonl")
    ages = [
        (name.partition("~")[0], age)
        for batch in batches
        for name, age in batch["off_policyness"].items()
    ]
    times = Counter(name for name, _ in ages)
    seen = {int(group["group_id"]) for group in groups if group["group_id"]}
    metrics = [line for line in _lines(run_dir / "metrics.jsonl") if "eval/success" not in line]
    return RunVerdict(
        num_updates=len(batches),
        num_episodes=len(times),
        num_twice=sum(count > 1 for count in times.values()),
        max_off_policyness=max((age for _, age in ages), default=0),
        bound=config.off_policyness_bound,
        num_broken_steps=_broken_steps(metrics, batches),
        num_misplaced=_misplaced(config, groups),
        num_left_out=max(seen, default=-1) + 1 - len(seen),
        most_left_out=config.capacity // config.gconfig.n_samples,
    )


def _broken_steps(metrics: list[dict[str, Any]], batches: list[dict[str, Any]]) -> int:
    """Return how many steps differ from 1, 2, 3, ...; the newest may be in one file only."""
    broken = 0
    for lines in (metrics, batches):
        steps = [line["step"] for line in lines]
        broken += sum(step != number for number, step in enumerate(steps, start=1))
    return broken + max(0, abs(len(metrics) - len(batches)) - 1)


def _misplaced(config: WebRLConfig, groups: list[dict[str, Any]]) -> int:
    stream = component_configs.task_stream(config)
    misplaced = 0
    for group in groups:
        for member in group["members"]:
            index, _, number = member["episode_id"].partition("/")
            # What stands behind the `~` counts the refills of a member that was lost.
            planned = stream.group(int(index))[int(number.partition("~")[0])].payload
            assert isinstance(planned, EpisodeTask)
            misplaced += (member["task"], member["seed"]) != (planned.task, planned.seed)
    return misplaced


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a file: what was killed may have left half of one."""
    *whole, _ = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in whole]
