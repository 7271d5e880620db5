"""`webrl compare`: the same configuration, asynchronous and synchronous, one after the other.

Invariant: only the pool differs. Tasks, seeds, workflow, browsers, server, trainer and batch size are
those of the configuration; the synchronous run joins the roles by `|` and gives up its servers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from webrl.config import WebRLConfig
from webrl.run.run import run_training

WARMUP_STEPS = 1
"""Steps left out: the first one fills an empty pipeline and compiles nothing twice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredMode:
    """What one mode reached, over the steps after the first."""

    mode: str
    """`asynchronous` or `synchronous`."""
    num_steps: int
    """Steps counted."""
    seconds: float
    """Their wall-clock time."""
    episodes_per_s: float
    """Episodes that ended, faults excluded, per second."""
    rows_per_s: float
    """Training rows (steps of episodes with a gradient) per second."""
    slots_idle: float
    """Share of slot time without an episode."""
    trainer_idle: float
    """Share of a step in which the trainer waited for its batch."""
    off_policyness: float
    """Mean over trained tokens, in versions."""
    window_ms: float
    """Mean pause of generation by one weight update."""


def synchronous_config(config: WebRLConfig) -> WebRLConfig:
    """Return the same configuration on shared devices without servers of its own.

    Args:
        config: An asynchronous configuration.
    """
    return replace(
        config,
        allocation_mode=config.allocation_mode.replace("+", "|"),
        cluster=replace(config.cluster, n_inference_servers=0),
        rollout=replace(config.rollout, max_head_offpolicyness=0),
    )


def compare(config: WebRLConfig, console: Console) -> tuple[MeasuredMode, MeasuredMode] | None:
    """Run both modes for `config.total_steps` steps and print their figures side by side.

    Args:
        config: Resolved, asynchronous; its `run_dir` gets one folder per mode.
        console: Where to draw.

    Returns:
        Asynchronous and synchronous figures, None after Ctrl-C.

    Raises:
        WebRLError: A run could not start, or had to stop.
    """
    figures: list[MeasuredMode] = []
    for mode, one in (("asynchronous", config), ("synchronous", synchronous_config(config))):
        run_dir = Path(config.run_dir) / mode
        chosen = replace(
            one,
            run_dir=str(run_dir),
            policy=replace(one.policy, path=_policy_path(config)),
            test_rollout=replace(one.test_rollout, enabled=False),
        )
        console.print(f"-- {mode}")
        if run_training(chosen, resume=False, console=console) != 0:
            return None
        figures.append(figures_of(mode, run_dir / "metrics.jsonl"))
    console.print(table(*figures))
    return figures[0], figures[1]


def _policy_path(config: WebRLConfig) -> str | None:
    """Return the policy of the first run for the second one, so that it is made once."""
    made = Path(config.run_dir) / "asynchronous" / "policy"
    return str(made) if config.policy.path is None and made.is_dir() else config.policy.path


def figures_of(mode: str, metrics: Path) -> MeasuredMode:
    """Return the figures of one run from its `metrics.jsonl`.

    Args:
        metrics: The file; at least two steps.
    """
    every = [json.loads(line) for line in metrics.read_text().splitlines()]
    lines = [line for line in every if "eval/success" not in line][WARMUP_STEPS:]
    seconds = sum(line["time/step_s"] for line in lines)

    def mean(key: str) -> float:
        values = [line[key] for line in lines if line.get(key) is not None]
        return sum(values) / len(values) if values else 0.0

    return MeasuredMode(
        mode=mode,
        num_steps=len(lines),
        seconds=seconds,
        episodes_per_s=sum(line["rollout/episodes_per_s"] * line["time/step_s"] for line in lines)
        / seconds,
        rows_per_s=sum(line.get("batch/num_rows", 0.0) for line in lines) / seconds,
        slots_idle=mean("idle/rollout_share"),
        trainer_idle=mean("idle/actor_share"),
        off_policyness=mean("off_policyness/mean"),
        window_ms=1e3 * mean("publish/window_s"),
    )


def table(asynchronous: MeasuredMode, synchronous: MeasuredMode) -> str:
    """Return both modes' figures and their ratio as lines of text."""
    rows = [
        ("steps counted", "{:.0f}", "num_steps"),
        ("seconds", "{:.1f}", "seconds"),
        ("episodes / s", "{:.2f}", "episodes_per_s"),
        ("training rows / s", "{:.2f}", "rows_per_s"),
        ("slots idle", "{:.1%}", "slots_idle"),
        ("trainer idle", "{:.1%}", "trainer_idle"),
        ("off-policyness", "{:.2f}", "off_policyness"),
        ("update window, ms", "{:.0f}", "window_ms"),
    ]
    lines = [f"{'':<20}{'asynchronous':>14}{'synchronous':>14}"]
    for label, form, key in rows:
        cells = [form.format(getattr(figures, key)) for figures in (asynchronous, synchronous)]
        lines.append(f"{label:<20}{cells[0]:>14}{cells[1]:>14}")
    ratio = asynchronous.episodes_per_s / max(1e-9, synchronous.episodes_per_s)
    lines.append(f"asynchronous / synchronous episodes per second: {ratio:.2f}")
    return "\n".join(lines)
