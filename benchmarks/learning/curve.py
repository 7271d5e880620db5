"""Learning curves of runs: a picture and a table from their `evaluations.jsonl`.

    for seed in 0 1 2; do webrl train --config laptop seed=$seed run_dir=runs/seed$seed; done
    python benchmarks/learning/curve.py runs/seed0 runs/seed1 runs/seed2 --out docs/laptop-curve.png

Points are greedy evaluations by the test rollout on 128 held-out seeds while training went on, with
their 95 % intervals; the last point of each run is the one on 512 held-out seeds after it.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON-lines file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def seconds_at(steps: Sequence[dict[str, Any]]) -> dict[int, float]:
    """Return training seconds from the first step's start to each published version."""
    elapsed, at = 0.0, {0: 0.0}
    for step in steps:
        elapsed += step["time/step_s"]
        at[int(step["weights/version"])] = elapsed
    return at


def draw(runs: Sequence[Path], out: Path, title: str) -> None:
    """Draw success over training time, one line a run."""
    figure, axes = plt.subplots(figsize=(7.2, 3.6), dpi=130)
    for run in runs:
        at = seconds_at(read_lines(run / "metrics.jsonl"))
        points = read_lines(run / "evaluations.jsonl")
        xs = [at[point["version"]] for point in points]
        ys = [point["mean"] for point in points]
        low = [max(0.0, y - point["low"]) for y, point in zip(ys, points, strict=True)]
        high = [max(0.0, point["high"] - y) for y, point in zip(ys, points, strict=True)]
        axes.errorbar(xs, ys, yerr=[low, high], marker="o", ms=4, capsize=2, lw=1.4, label=run.name)
    axes.axhline(0.9, color="0.6", lw=0.8, ls="--")
    axes.set(xlabel="training time, s", ylabel="greedy success, held-out seeds", ylim=(0, 1))
    axes.set_title(title, fontsize=10)
    axes.grid(visible=True, alpha=0.25)
    axes.legend(loc="lower right", fontsize=8)
    figure.tight_layout()
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)


def table(runs: Sequence[Path]) -> str:
    """Return one Markdown row a run: start, end with interval, time, episodes, rate, window."""
    lines = [
        "| run | start | end, 512 seeds [95 %] | training | episodes | episodes/s | window |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        steps = read_lines(run / "metrics.jsonl")
        points = read_lines(run / "evaluations.jsonl")
        first, last = points[0], points[-1]
        seconds = sum(step["time/step_s"] for step in steps)
        episodes = steps[-1]["rollout/episodes_total"]
        windows = sorted(step["publish/window_s"] for step in steps if "publish/window_s" in step)
        lines.append(
            f"| {run.name} | {first['mean']:.3f} | {last['mean']:.3f} "
            f"[{last['low']:.3f}, {last['high']:.3f}] | {seconds:.0f} s | {episodes:.0f} | "
            f"{episodes / seconds:.0f} | {1e3 * windows[len(windows) // 2]:.0f} ms |"
        )
    return "\n".join(lines)


def main() -> None:
    """Draw and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/laptop-curve.png"))
    parser.add_argument("--title", default="webrl train --config laptop (two cores, no GPU)")
    arguments = parser.parse_args()
    draw(arguments.runs, arguments.out, arguments.title)
    print(table(arguments.runs))


if __name__ == "__main__":
    main()
