"""Prints what a run under `run.sh` did, as one JSON object.

python benchmarks/one_gpu/report.py RUN_DIR WATCH.jsonl
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]


def read(path: Path) -> Rows:
    """Return the objects of a JSON-lines file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def middle(rows: Rows, key: str) -> float | None:
    """Return the median of one metric."""
    values = [row[key] for row in rows if row.get(key) is not None]
    return round(statistics.median(values), 4) if values else None


def updates(metrics: Rows) -> dict[str, Any]:
    """Return medians over the steps but the first, which compiles."""
    rows = metrics[1:] or metrics
    keys = sorted({key for row in rows for key in row})
    wanted = ("publish/", "time/", "idle/", "staleness_ratio/", "rollout/episodes_per_s", "clip/")
    return {key: middle(rows, key) for key in keys if key.startswith(wanted)}


def curve(metrics: Rows, size: int = 10) -> list[float]:
    """Return the success share of training episodes, averaged over blocks of steps."""
    shares = [row["rollout/success_share"] for row in metrics if "rollout/success_share" in row]
    blocks = [shares[i : i + size] for i in range(0, len(shares), size)]
    return [round(statistics.mean(block), 3) for block in blocks]


def client(rows: Rows, num_updates: int) -> dict[str, Any]:
    """Return what the one-token client saw: its usual wait, and its waits across updates."""
    tokens = [row for row in rows if row["kind"] == "token"]
    if len(tokens) < 2:
        return {}
    latencies = sorted(row["latency_s"] for row in tokens)
    crossings = [
        after["at"] - before["at"]
        for before, after in itertools.pairwise(tokens)
        if after["version"] != before["version"]
    ]
    return {
        "one_token_p50_s": round(latencies[len(latencies) // 2], 4),
        "one_token_p99_s": round(latencies[int(len(latencies) * 0.99)], 4),
        "updates": num_updates,
        "updates_seen": len(crossings),
        "token_to_token_across_update_median_s": (
            round(statistics.median(crossings), 4) if crossings else None
        ),
        "token_to_token_across_update_max_s": round(max(crossings), 4) if crossings else None,
    }


def devices(rows: Rows) -> dict[str, Any]:
    """Return how often the GPU and the servers had nothing to do."""
    found: dict[str, Any] = {}
    for name in ("rollout", "test"):
        loads = [row["running"] for row in rows if row["kind"] == name]
        if loads:
            found[f"{name}_server_idle_share"] = round(loads.count(0) / len(loads), 3)
    samples = [row["line"].split(",") for row in rows if row["kind"] == "gpu"]
    busy = [float(sample[0]) for sample in samples if sample[0].strip().isdigit()]
    if busy:
        found["gpu_utilisation_mean_percent"] = round(statistics.mean(busy), 1)
        found["gpu_idle_share"] = round(sum(value == 0 for value in busy) / len(busy), 3)
        found["gpu_memory_max_mib"] = max(float(sample[1]) for sample in samples)
    return found


def main() -> None:
    """Print the report of one run."""
    run_dir, watched = Path(sys.argv[1]), Path(sys.argv[2])
    metrics = [line for line in read(run_dir / "metrics.jsonl") if "eval/success" not in line]
    rows = read(watched)
    # Before the first update servers start and kernels compile.
    first = min((row["at"] for row in rows if row.get("version", 0) > 0), default=0.0)
    report = {
        "steps": len(metrics),
        "medians": updates(metrics),
        "success_share_by_10_steps": curve(metrics),
        "client": client(rows, len(metrics)),
        "devices": devices([row for row in rows if row["at"] >= first]),
        "evaluations": [
            {key: row.get(key) for key in ("version", "mean", "low", "high", "num_faults")}
            for row in read(run_dir / "evaluations.jsonl")
        ],
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
