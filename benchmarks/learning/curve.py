"""Learning curves: of runs from their folders, or of the recorded comparisons.

    for seed in 0 1 2; do webrl train --config laptop seed=$seed run_dir=runs/seed$seed; done
    python benchmarks/learning/curve.py runs/seed0 runs/seed1 runs/seed2 --out docs/laptop-curve.png
    python benchmarks/learning/curve.py --baseline     # from baselines/learning.json, see `grid.py`

Points are greedy evaluations by the test rollout on 128 held-out seeds while training went on, with
their 95 % intervals; the last point of each run is the one on more held-out seeds after it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from records import record_of

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

ROOT = Path(__file__).parents[2]
BASELINE = ROOT / "benchmarks" / "baselines" / "learning.json"
SUCCESS = 0.9
COLORS = {"async": "tab:blue", "sync": "tab:orange", "decoupled": "tab:blue", "coupled": "tab:red"}


def draw(runs: Sequence[Path], out: Path, title: str) -> None:
    """Draw success over training time, one line a run."""
    figure, axes = plt.subplots(figsize=(7.2, 3.6), dpi=130)
    for run in runs:
        points = record_of(run)["evaluations"]
        xs, ys = [p[0] for p in points], [p[2] for p in points]
        low = [max(0.0, p[2] - p[3]) for p in points]
        high = [max(0.0, p[4] - p[2]) for p in points]
        axes.errorbar(xs, ys, yerr=[low, high], marker="o", ms=4, capsize=2, lw=1.4, label=run.name)
    finish(axes, "training time, s", title)
    axes.set_ylabel("greedy success, held-out seeds")
    axes.legend(loc="lower right", fontsize=8)
    save(figure, out)


def finish(axes: Axes, xlabel: str, title: str) -> None:
    """Draw what all pictures share."""
    axes.axhline(SUCCESS, color="0.6", lw=0.8, ls="--")
    axes.set(xlabel=xlabel, ylim=(0, 1.02))
    axes.set_title(title, fontsize=10)
    axes.grid(visible=True, alpha=0.25)


def save(figure: Any, out: Path) -> None:
    """Write a picture."""
    figure.tight_layout()
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)


def draw_pair(axes: Axes, runs: Sequence[dict[str, Any]], names: Sequence[str], axis: int) -> None:
    """Draw every seed of some names: greedy points, and sampled success as a thin line."""
    for name in names:
        label = name.removeprefix("slow-page-").partition("-eta")[0]
        for index, run in enumerate(r for r in runs if r["name"] == name):
            color = COLORS[label]
            points, sampled = run["evaluations"], run["sampled"]
            axes.plot(
                [p[axis] for p in sampled], [p[2] for p in sampled], lw=0.6, c=color, alpha=0.4
            )
            axes.plot(
                [p[axis] for p in points],
                [p[2] for p in points],
                marker=".",
                lw=1.3,
                c=color,
                label=label if index == 0 else None,
            )
    axes.legend(loc="lower right", fontsize=8)


def draw_baseline(runs: Sequence[dict[str, Any]], folder: Path) -> None:
    """Draw asynchronous beside synchronous, and decoupled beside coupled."""
    known = {run["name"] for run in runs}
    pages = [("laptop task", ""), ("pages of 0.5 s latency, cv 1", "slow-page-")]
    pages = [(title, prefix) for title, prefix in pages if f"{prefix}async" in known]
    figure, every = plt.subplots(
        1, len(pages), figsize=(4.6 * len(pages), 3.4), dpi=130, squeeze=False
    )
    for axes, (title, prefix) in zip(every[0], pages, strict=True):
        draw_pair(axes, runs, [f"{prefix}async", f"{prefix}sync"], axis=0)
        finish(axes, "training time, s", title)
    every[0][0].set_ylabel("greedy success, held-out seeds")
    save(figure, folder / "learning-pools.png")
    etas = [eta for eta in (0, 2, 8) if f"decoupled-eta-{eta}" in known]
    if not etas:
        return
    figure, every = plt.subplots(
        1, len(etas), figsize=(3.6 * len(etas), 3.4), dpi=130, squeeze=False
    )
    for axes, eta in zip(every[0], etas, strict=True):
        draw_pair(axes, runs, [f"decoupled-eta-{eta}", f"coupled-eta-{eta}"], axis=1)
        finish(axes, "updates", f"every batch {eta} versions behind")
    every[0][0].set_ylabel("greedy success, held-out seeds")
    save(figure, folder / "learning-loss.png")


def table(runs: Sequence[Path]) -> str:
    """Return one Markdown row a run: start, end with interval, time, episodes, rate, window."""
    lines = [
        "| run | start | end [95 %] | training | episodes | episodes/s | window |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        record = record_of(run)
        first, last = record["evaluations"][0], record["evaluations"][-1]
        lines.append(
            f"| {run.name} | {first[2]:.3f} | {last[2]:.3f} [{last[3]:.3f}, {last[4]:.3f}] | "
            f"{record['seconds']:.0f} s | {record['episodes']:.0f} | "
            f"{record['episodes_per_s']:.0f} | {1e3 * record['window_s']:.0f} ms |"
        )
    return "\n".join(lines)


def main() -> None:
    """Draw and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "laptop-curve.png")
    parser.add_argument("--title", default="webrl train --config laptop (two cores, no GPU)")
    parser.add_argument("--baseline", action="store_true", help="draw the recorded comparisons")
    arguments = parser.parse_args()
    if arguments.baseline:
        draw_baseline(json.loads(BASELINE.read_text())["runs"], ROOT / "docs")
        return
    draw(arguments.runs, arguments.out, arguments.title)
    print(table(arguments.runs))


if __name__ == "__main__":
    main()
