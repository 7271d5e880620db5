"""What a rehearsal prints: from the run's own files, and from what was seen from outside."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from awrl_trainer import latest_complete_checkpoint

from webrl.config import WebRLConfig
from webrl.rehearse.injection import ChaosOutcome
from webrl.rehearse.manifest import Manifest
from webrl.rehearse.scale import Scale
from webrl.rehearse.verdict import RunVerdict

PUBLISH_STEPS = (
    "handshake", "pause", "gather", "broadcast", "switch", "verify", "resume", "window",
)  # fmt: skip
"""Parts of a publish that metrics name, in their order."""


@dataclass(kw_only=True, slots=True)
class Rehearsal:
    """Everything that was found."""

    placement: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """Workers of each role on each node, the whole configuration's."""
    scale: Scale | None = None
    """Size of the running part; None when only the placement was looked at."""
    true_manifest: Manifest | None = None
    """Weights of the true policy."""
    num_bytes: int = 0
    """Bytes of the narrow policy's weights."""
    num_buckets: int = 0
    """Broadcasts of one publish."""
    outcome: ChaosOutcome | None = None
    """What was killed, and how the run went on."""
    verdict: RunVerdict | None = None
    """What the run's files say of lost or doubled episodes."""
    memory: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """Bytes of each process by part."""
    most_bytes: int = 0
    """Memory of everything together, at most."""
    run_dir: Path | None = None
    """Folder of the run."""
    problems: list[str] = field(default_factory=list[str])
    """Everything that failed and was not asked for."""

    def all_problems(self) -> list[str]:
        """Return every sentence about what must not be."""
        outcome, verdict = self.outcome, self.verdict
        return [
            *self.problems,
            *(outcome.problems if outcome else ()),
            *(verdict.problems if verdict else ()),
        ]


def describe(config: WebRLConfig, found: Rehearsal) -> str:
    """Return the report as text."""
    lines = ["placement of the whole configuration", *_placement_lines(found.placement)]
    if found.scale is not None:
        lines += ["", "running part", f"  {found.scale.describe(config)}", *_stand_in_lines(found)]
    if found.run_dir is not None:
        steps = _steps(found.run_dir)
        lines += ["", "memory, MiB (shared pages in proportion)", *_memory_lines(found)]
        lines += ["", "publishes", *_publish_lines(found, steps)]
        lines += ["", "checkpoints", *_checkpoint_lines(found.run_dir, steps)]
        lines += ["", "episodes", *_episode_lines(found.run_dir, steps)]
    if found.outcome is not None:
        lines += ["", "failures on request", *_fault_lines(found.outcome)]
    problems = found.all_problems()
    lines += ["", *(f"PROBLEM {problem}" for problem in problems)]
    lines.append(f"{len(problems)} problems" if problems else "no problem found")
    return "\n".join(lines)


def as_json(config: WebRLConfig, found: Rehearsal) -> dict[str, Any]:
    """Return the report as values."""
    return {
        "placement": found.placement,
        "scale": None if found.scale is None else asdict(found.scale),
        "steps": [] if found.run_dir is None else _steps(found.run_dir),
        "memory_bytes": found.memory,
        "faults": [asdict(fault) for fault in found.outcome.faults] if found.outcome else [],
        "allocation_mode": config.allocation_mode,
        "problems": found.all_problems(),
    }


def _placement_lines(placement: Mapping[str, Mapping[str, int]]) -> list[str]:
    roles = sorted({role for counts in placement.values() for role in counts})
    if not roles:
        return ["  none"]
    lines = [f"  {'node':<16}" + "".join(f"{role:>16}" for role in roles)]
    for address, counts in placement.items():
        lines.append(f"  {address:<16}" + "".join(f"{counts.get(role, 0):>16}" for role in roles))
    totals = Counter[str]()
    for counts in placement.values():
        totals.update(counts)
    lines.append(f"  {'all':<16}" + "".join(f"{totals[role]:>16}" for role in roles))
    return lines


def _stand_in_lines(found: Rehearsal) -> list[str]:
    true = found.true_manifest
    if true is None:
        return []
    return [
        f"  policy: {len(true.specs)} weights of {true.num_bytes / 1e9:.2f} GB stand as "
        f"{found.num_bytes / 1e6:.1f} MB, scaled by {true.num_bytes / max(1, found.num_bytes):,.0f}",
        f"  a publish is {found.num_buckets} broadcasts, as of the true policy",
    ]


def _memory_lines(found: Rehearsal) -> list[str]:
    lines = [f"  {'part':<20}{'processes':>10}{'each':>8}{'all':>8}"]
    for part, sizes in found.memory.items():
        each, total = statistics.mean(sizes) / 2**20, sum(sizes) / 2**20
        lines.append(f"  {part:<20}{len(sizes):>10}{each:>8.0f}{total:>8.0f}")
    lines.append(f"  everything at its most: {found.most_bytes / 2**20:.0f}")
    return lines


def _publish_lines(found: Rehearsal, steps: Sequence[Mapping[str, float]]) -> list[str]:
    published = [step for step in steps if "publish/window_s" in step]
    if not published:
        return ["  none"]
    lines = [f"  {'seconds':<12}{'median':>9}{'longest':>9}"]
    for name in PUBLISH_STEPS:
        values = [step[f"publish/{name}_s"] for step in published if f"publish/{name}_s" in step]
        if values:
            lines.append(f"  {name:<12}{statistics.median(values):>9.3f}{max(values):>9.3f}")
    receivers = Counter(int(step["publish/num_receivers"]) for step in published)
    shown = ", ".join(f"{count} to {number} servers" for number, count in sorted(receivers.items()))
    calls = found.num_buckets * max(receivers)
    lines.append(
        f"  {len(published)} publishes: {shown}; {calls} calls each at most, "
        f"{max(step['publish/num_bytes'] for step in published) / 1e6:.1f} MB"
    )
    return lines


def _checkpoint_lines(run_dir: Path, steps: Sequence[Mapping[str, float]]) -> list[str]:
    lines: list[str] = []
    for name in ("time/save_stall_s", "time/save_s", "checkpoint/num_bytes"):
        values = [step[name] for step in steps if step.get(name)]
        if values:
            lines.append(
                f"  {name:<24}median {statistics.median(values):.3f}, most {max(values):.3f}"
            )
    for kind in ("trainer", "policy"):
        folder = latest_complete_checkpoint(run_dir / "checkpoints" / kind)
        if folder is not None:
            files = [file for file in folder.rglob("*") if file.is_file()]
            size = sum(file.stat().st_size for file in files)
            lines.append(f"  {kind}: {folder.name}, {len(files)} files, {size / 1e6:.1f} MB")
    return lines or ["  none"]


def _episode_lines(run_dir: Path, steps: Sequence[Mapping[str, float]]) -> list[str]:
    endings, servers, rows = Counter[str](), Counter[str](), 0
    for line in _lines(run_dir / "episodes.jsonl"):
        for member in line["members"]:
            rows += 1
            endings[f"{member['outcome']} ({member['ending']})"] += 1
            servers[str(member["worker"])] += 1
    lines = [f"  {count:>6} {ending}" for ending, count in endings.most_common()]
    if steps:
        last = steps[-1]
        ages = [step["off_policyness/max"] for step in steps if "off_policyness/max" in step]
        lines.append(
            f"  {len(steps)} updates, {last.get('rollout/trained_total', 0):.0f} of {rows} episodes "
            f"trained on, off-policyness at most {max(ages, default=0):.0f} versions"
        )
        loads = [
            step["inference/load_max_over_mean"]
            for step in steps
            if "inference/load_max_over_mean" in step
        ]
        if loads:
            lines.append(f"  fullest server over the mean: median {statistics.median(loads):.2f}")
    if servers:
        counts = list(servers.values())
        lines.append(f"  episodes of a worker: {min(counts)} to {max(counts)}")
    return lines or ["  none"]


def _fault_lines(outcome: ChaosOutcome) -> list[str]:
    if not outcome.faults:
        return ["  none"]
    lines = [f"  {'what':<20}{'at s':>8}{'healed after s':>16}"]
    for fault in outcome.faults:
        healed = "-" if fault.recovered_s is None else f"{fault.recovered_s:.0f}"
        lines.append(f"  {fault.kind:<20}{fault.at_s:>8.0f}{healed:>16}")
    return lines


def _steps(run_dir: Path) -> list[dict[str, float]]:
    return [line for line in _lines(run_dir / "metrics.jsonl") if "eval/success" not in line]


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a file: what was killed may have left half of one."""
    if not path.exists():
        return []
    *whole, _ = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in whole]
