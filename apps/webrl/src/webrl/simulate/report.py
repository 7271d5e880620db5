"""Both modes' figures, the measured ones beside them, and every assumption, as lines of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from webrl.simulate.assumptions import described
from webrl.simulate.figures import ModeFigures
from webrl.simulate.model import SimulationModel
from webrl.simulate.sweep import SweepPoint, best_point
from webrl.simulate.trace import MeasuredFigures

_ROWS = (
    ("steps counted", "{:.0f}", "num_steps"),
    ("step, s", "{:,.1f}", "step_s"),
    ("  waiting for the batch, s", "{:,.1f}", "collect_s"),
    ("  update, s", "{:,.1f}", "train_s"),
    ("episodes ended / h", "{:,.0f}", "episodes_per_h"),
    ("episodes trained on / h", "{:,.0f}", "trained_per_h"),
    ("training rows / h", "{:,.0f}", "rows_per_h"),
    ("episodes running", "{:,.0f}", "running_episodes"),
    ("slots idle", "{:.1%}", "slots_idle"),
    ("servers idle", "{:.1%}", "servers_idle"),
    ("requests per server", "{:.1f}", "requests_per_server"),
    ("trainer idle", "{:.1%}", "trainer_idle"),
    ("servers held by updates", "{:.2%}", "window_share"),
    ("age in the queue, s (mean)", "{:,.1f}", "queue_s"),
    ("age in the queue, s (p95)", "{:,.1f}", "queue_p95_s"),
    ("off-policyness (mean)", "{:.2f}", "mean_off_policyness"),
    ("ran in vain", "{:.1%}", "wasted_share"),
)


def figures_table(asynchronous: ModeFigures, synchronous: ModeFigures | None) -> str:
    """Return the figures of one or both modes, and what binds."""
    modes = [asynchronous, *([synchronous] if synchronous else [])]
    lines = [" " * 30 + "".join(f"{mode.mode:>14}" for mode in modes)]
    for label, form, key in _ROWS:
        lines.append(f"{label:<30}" + "".join(f"{form.format(getattr(m, key)):>14}" for m in modes))
    lines += [
        f"off-policyness, versions: {_histogram(asynchronous.off_policyness)}",
        f"  aged in flight:         {_histogram(asynchronous.in_flight_age)}",
        f"  aged in the queue:      {_histogram(asynchronous.in_queue_age)}",
        "what keeps a further episode from starting (share of time): "
        + ", ".join(f"{name} {share:.0%}" for name, share in asynchronous.bounds.items()),
        f"what binds the throughput: {_binding(asynchronous)}",
    ]
    if synchronous:
        ratio = asynchronous.episodes_per_h / max(1e-9, synchronous.episodes_per_h)
        trained = asynchronous.trained_per_h / max(1e-9, synchronous.trained_per_h)
        lines.append(
            f"asynchronous / synchronous: {ratio:.2f} x the episodes an hour, {trained:.2f} x the "
            "episodes trained on"
        )
    return "\n".join(lines)


_WAITS = 0.15
"""A trainer that waits for its batch less than this share of a step is what binds."""
_OFTEN = 0.5
"""A bound that refuses episodes for more than this share of the time is what binds."""


def _binding(figures: ModeFigures) -> str:
    if figures.collect_s < _WAITS * figures.step_s:
        return "the trainer; rollout waits for its updates"
    name = max(figures.bounds, key=lambda bound: figures.bounds[bound], default="nothing")
    if figures.bounds.get(name, 0.0) > _OFTEN and name == "slots":
        return "the slots: more of them, or faster episodes, give more"
    if figures.bounds.get(name, 0.0) > _OFTEN and name != "nothing":
        return f"{name}: no further episode may start while the trainer waits for these to end"
    return "the latency of episodes and their dispatch"


def _histogram(counts: Mapping[int, int]) -> str:
    total = sum(counts.values())
    if not total:
        return "none"
    return ", ".join(f"{age}: {count / total:.0%}" for age, count in sorted(counts.items()))


def measured_table(predicted: ModeFigures, measured: MeasuredFigures) -> str:
    """Return a run's own figures beside the simulated ones."""
    rows = (
        ("step, s", "{:.2f}", "step_s"),
        ("episodes ended / h", "{:,.0f}", "episodes_per_h"),
        ("training rows / h", "{:,.0f}", "rows_per_h"),
        ("slots idle", "{:.1%}", "slots_idle"),
        ("trainer idle", "{:.1%}", "trainer_idle"),
        ("off-policyness (mean)", "{:.2f}", "mean_off_policyness"),
    )
    lines = [f"{'':<30}{'predicted':>14}{'measured':>14}{'difference':>14}"]
    for label, form, key in rows:
        one, other = getattr(predicted, key), getattr(measured, key)
        apart = f"{one - other:+.3f}"
        if "idle" not in key and other:
            apart = f"{one / other - 1.0:+.1%}"
        lines.append(f"{label:<30}{form.format(one):>14}{form.format(other):>14}{apart:>14}")
    return "\n".join(lines)


def sweep_table(points: Sequence[SweepPoint]) -> str:
    """Return one line a point, and the best one."""
    lines = [
        f"{'servers + ranks':>16}{'eta':>5}{'step, s':>10}{'trained / h':>13}{'servers idle':>14}"
        f"{'trainer idle':>14}{'off-policy':>12}{'in vain':>9}"
    ]
    for point in points:
        figures = point.figures
        split = f"{point.layout.num_servers} + {point.layout.num_ranks}"
        lines.append(
            f"{split:>16}{point.eta:>5}{figures.step_s:>10,.0f}{figures.trained_per_h:>13,.0f}"
            f"{figures.servers_idle:>14.1%}{figures.trainer_idle:>14.1%}"
            f"{figures.mean_off_policyness:>12.2f}{figures.wasted_share:>9.1%}"
        )
    best = best_point(list(points))
    lines.append(
        f"best: {best.layout.num_servers} servers + {best.layout.num_ranks} ranks, eta {best.eta}: "
        f"{best.figures.trained_per_h:,.0f} episodes trained on an hour"
    )
    return "\n".join(lines)


def assumptions_table(model: SimulationModel, *, is_traced: bool) -> str:
    """Return every number of the model with its meaning."""
    lines = ["assumptions (set any with --set key=value):"]
    for key, value, meaning in described(model):
        if is_traced and key.startswith(("model.episode.", "model.server.")):
            continue
        lines.append(f"  {key:<36}{value:>10}  {meaning}")
    if is_traced:
        lines.append("  episodes, their steps and their times: those of the recorded run")
    lines.append(
        "  not modelled: contention of browsers and servers for one machine's cores, faults, lost "
        "callbacks, evaluation"
    )
    return "\n".join(lines)
