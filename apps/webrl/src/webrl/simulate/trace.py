"""A recorded run as latencies: its own episodes, updates and broadcasts.

Invariant: group i of a simulation is group i of the run while the run has it, and repeats the run's
groups after that; the time of a request is the recorded one whatever else runs on the server.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from awrl_rollout import EpisodeRequest

from webrl.errors import ConfigError
from webrl.simulate.model import SimulationModel
from webrl.simulate.plans import EpisodePlan

logger = logging.getLogger(__name__)

_UNLIMITED = 1_000_000
"""Requests at once on a server whose recorded times hold its queueing already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredFigures:
    """What the run itself reached over the steps after its warm-up."""

    num_steps: int
    step_s: float
    episodes_per_h: float
    rows_per_h: float
    slots_idle: float
    trainer_idle: float
    mean_off_policyness: float
    """Over the whole run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTrace:
    """One recorded run."""

    plans: TracePlans
    """Its episodes."""
    model: SimulationModel
    """Its updates, broadcasts and dispatch; the episode's numbers are not used."""
    steps: tuple[dict[str, Any], ...]
    """Lines of its `metrics.jsonl`."""

    def measured(self, num_warmup: int) -> MeasuredFigures:
        """Return the run's figures without its first steps.

        Args:
            num_warmup: Steps left out, as in the simulation.
        """
        first, counted = self.steps[num_warmup - 1], self.steps[num_warmup:]
        seconds = sum(step["time/step_s"] for step in counted)
        ended = counted[-1]["rollout/episodes_total"] - first["rollout/episodes_total"]
        return MeasuredFigures(
            num_steps=len(counted),
            step_s=seconds / len(counted),
            episodes_per_h=3600.0 * ended / seconds,
            rows_per_h=3600.0
            * sum(step.get("batch/num_rows") or 0.0 for step in counted)
            / seconds,
            slots_idle=_weighted(counted, "idle/rollout_share"),
            trainer_idle=1.0 - sum(step["time/train_s"] for step in counted) / seconds,
            mean_off_policyness=counted[-1].get("staleness/off_policyness_mean_versions") or 0.0,
        )


class TracePlans:
    """Plans that are the recorded episodes.

    Args:
        groups: Name and members of each, in the order of their starts: the first that completed are
            shorter than others.
    """

    def __init__(self, groups: Sequence[tuple[str, list[EpisodePlan]]]) -> None:
        self._groups = [members for _, members in groups]
        self._by_name = dict(groups)

    def plan(self, request: EpisodeRequest) -> EpisodePlan:
        """Return the recorded episode of this group and member, or the one in its place."""
        members = self._by_name.get(request.group_id)
        if members is None:
            members = self._groups[int(request.group_id) % len(self._groups)]
        return members[request.member % len(members)]


def read_trace(run: Path, base: SimulationModel) -> RunTrace:
    """Return a run's trace.

    Args:
        run: Folder of the run, with `episodes.jsonl` and `metrics.jsonl`.
        base: What the run does not tell.

    Raises:
        ConfigError: The folder holds no finished group or no two steps, or those of another release.
    """
    try:
        return _trace(run, base)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ConfigError(
            f"--trace must be a run that this release wrote, got lines in {str(run)!r} that lack "
            f"what it needs ({type(error).__name__}: {error}). Record it anew."
        ) from error


def _trace(run: Path, base: SimulationModel) -> RunTrace:
    groups = [group for group in _lines(run / "episodes.jsonl") if group["members"]]
    steps = [line for line in _lines(run / "metrics.jsonl") if "eval/success" not in line]
    if not groups or len(steps) < 2:
        raise ConfigError(
            f"--trace must be a run with finished groups and two steps, got {len(groups)} groups "
            f"and {len(steps)} steps in {str(run)!r}. Let it run longer."
        )
    plans = [
        (group["group_id"], [_plan(member) for member in group["members"]])
        for group in _uncensored(groups)
    ]
    return RunTrace(
        plans=TracePlans(plans),
        model=_model(steps[1:], [m for group in groups for m in group["members"]], base),
        steps=tuple(steps),
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return what the lines hold; one that a kill or a full disk has torn is left out."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(
            f"--trace must be the folder of a run, got no {str(path)!r}. Give runs/NAME."
        ) from error
    found: list[dict[str, Any]] = []
    for line in lines:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    if len(found) < len(lines):
        logger.warning("%s: %d torn lines are left out", path, len(lines) - len(found))
    return found


def _uncensored(groups: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Return the groups that are there whatever their length, in the order of their starts.

    A run ends in the middle of its groups, and of those that started late only the short ones are
    there. So the ones that started later than the longest group's time before the end are left out,
    unless that would leave fewer than a quarter of them.
    """
    groups = sorted(groups, key=_started_s)
    spans = [_ended_s(group) - _started_s(group) for group in groups]
    latest_s = max(_ended_s(group) for group in groups) - max(spans)
    kept = [group for group in groups if _started_s(group) <= latest_s]
    return kept if 4 * len(kept) >= len(groups) else groups


def _started_s(group: dict[str, Any]) -> float:
    return min(member["started_s"] for member in group["members"])


def _ended_s(group: dict[str, Any]) -> float:
    return max(member["ended_s"] for member in group["members"])


def _plan(member: dict[str, Any]) -> EpisodePlan:
    step_s = list(member["environment_s"])
    inside = member["reset_s"] + sum(step_s) + sum(member["generate_s"])
    step_s[-1] += max(0.0, member["ended_s"] - member["started_s"] - inside)
    return EpisodePlan(
        member["reset_s"], list(member["generate_s"]), step_s, member["outcome"] == "success"
    )


def _model(
    steps: Sequence[dict[str, Any]], members: Sequence[dict[str, Any]], base: SimulationModel
) -> SimulationModel:
    """Return the run's own updates, broadcasts and dispatch."""
    count = len(steps)
    num_rows = sum(step.get("batch/num_rows") or 0.0 for step in steps)
    train_s = sum(step["time/train_s"] for step in steps)
    known = ("time/collect_s", "time/train_s", "time/publish_s")
    fixed_s = sum(step["time/step_s"] - sum(step[key] for key in known) for step in steps)
    window_s = sum(step.get("publish/window_s") or 0.0 for step in steps) / count
    publish_s = sum(step["time/publish_s"] for step in steps) / count
    return replace(
        base,
        server=replace(
            base.server, token_s=1.0, crowding=0.0, prefill_tokens=0.0, max_running=_UNLIMITED
        ),
        trainer=replace(
            base.trainer,
            row_s=train_s / num_rows if num_rows else 0.0,
            fixed_s=max(0.0, fixed_s / count),
        ),
        publish=replace(base.publish, window_s=window_s, outside_s=max(0.0, publish_s - window_s)),
        session=replace(base.session, dispatch_s=_dispatch_s(members)),
    )


def _dispatch_s(members: Sequence[dict[str, Any]]) -> float:
    """Return the median time between an episode's end and the next start on its worker."""
    ends: dict[str, list[float]] = {}
    for member in members:
        ends.setdefault(member["worker"], []).append(member["ended_s"])
    for times in ends.values():
        times.sort()
    gaps: list[float] = []
    for member in sorted(members, key=lambda member: member["started_s"]):
        times = ends[member["worker"]]
        at = bisect.bisect_right(times, member["started_s"])
        if at:
            gaps.append(member["started_s"] - times[0])
            del times[0]
    gaps.sort()
    return max(0.0, gaps[len(gaps) // 2]) if gaps else 0.0


def _weighted(steps: Sequence[dict[str, Any]], key: str) -> float:
    """Return a mean share, weighted by the time of the steps."""
    pairs = [(step[key], step["time/step_s"]) for step in steps if step.get(key) is not None]
    seconds = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / seconds if seconds else 0.0
