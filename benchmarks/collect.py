"""Baselines from the archive that `grid.py` leaves.

    python benchmarks/collect.py OUT/grid.tar.gz [MORE.tar.gz ...]     # of more, learning runs only
    python -m pytest benchmarks/staleness --benchmark-json=staleness.json
    python benchmarks/collect.py staleness.json     # of pytest-benchmark: without the timings of its rounds
    python benchmarks/results.py && python benchmarks/learning/curve.py --baseline

Writes `baselines/pools-*.json` (one file for each number of slots, one for equal lengths, one for what
was taken away), `baselines/learning.json`, and `baselines/simulate-pools-*.json`: each pool beside its
simulation from the recorded asynchronous run.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BASELINES = HERE / "baselines"
sys.path.insert(0, str(HERE / "learning"))
from records import record_of  # noqa: E402 - beside `curve.py`, which draws them

COMMAND = "python benchmarks/grid.py OUT --cores {} --cores-per-run 2"


def read_cells(root: Path) -> dict[str, dict[str, Any]]:
    """Return what each cell says of itself, by name."""
    found = (json.loads(path.read_text()) for path in sorted(root.glob("*/cell.json")))
    return {cell["name"]: cell for cell in found}


def described(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return where and when these cells ran."""
    host = cells[0]["host"]
    loads = [cell["load_average"] for cell in cells]
    return {
        "machine": f"{len(cells[0]['cores'])} cores a run, {host['cpu']}; "
        f"{host['cores_in_use']} of {host['cores']} cores hold such runs side by side",
        "load_average": " to ".join(dict.fromkeys((f"{min(loads):.0f}", f"{max(loads):.0f}"))),
        "command": COMMAND.format(host["cores_in_use"]),
        "date": cells[0]["date"],
    }


def pools(root: Path, cells: dict[str, dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and content of each baseline of pools."""
    kinds = {
        "-uniform": re.compile(r"pools-(\d+)-uniform-[\w-]+"),
        "-ablation": re.compile(r"pools-(\d+)-(without-\w+|eta-[02]|sync)"),
        "": re.compile(r"pools-(\d+)-(eta-\d+|sync)"),
    }
    for kind, pattern in kinds.items():
        by_slots: dict[str, list[str]] = {}
        for name in cells:
            match = pattern.fullmatch(name)
            if match and (root / name / "pools.json").exists():
                by_slots.setdefault(match[1], []).append(name)
        for slots, names in by_slots.items():
            if kind == "-ablation" and not any("without" in name for name in names):
                continue
            contents = [json.loads((root / name / "pools.json").read_text()) for name in names]
            points = [point for content in contents for point in content["points"]]
            points.sort(key=lambda p: (p["mode"], p["eta"], p.get("without", "")))
            head = {
                k: contents[0][k] for k in ("workload", "mean_steps", "latency_s", "latency_cv")
            }
            yield (
                f"pools-{slots}{kind}",
                head | {"points": points} | described([cells[name] for name in names]),
            )


def learning(root: Path, cells: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the record of each learning run, and where they ran."""
    runs: list[dict[str, Any]] = []
    used: list[dict[str, Any]] = []
    for name, cell in cells.items():
        match = re.fullmatch(r"learning-(.+)-seed(\d+)", name)
        if match and (root / name / "evaluations.jsonl").exists():
            what = {"name": match[1], "seed": int(match[2]), "status": cell["status"]}
            runs.append(what | record_of(root / name))
            used.append(cell)
    return {"runs": runs} | (described(used) if used else {})


def simulate(root: Path, cells: dict[str, dict[str, Any]]) -> None:
    """Write each pool beside its simulation."""
    for slots in (8, 16, 32):
        pair = [root / f"pools-{slots}-{what}" for what in ("eta-2", "sync")]
        if all(cells.get(path.name, {}).get("status") == "ok" for path in pair):
            command = [sys.executable, str(HERE / "simulate" / "traces.py"), *map(str, pair)]
            at_once = str(len(cells[pair[1].name]["cores"]) // 2)
            command += ["--name", f"pools-{slots}", "--at-once", at_once]
            subprocess.run(command, check=True)


def keep_micro(path: Path) -> None:
    """Write what figures of a pytest-benchmark file are compared and shown."""
    data = json.loads(path.read_text())
    cpu = data["machine_info"]["cpu"]
    kept = {
        "command": f"python -m pytest benchmarks/{path.stem} --benchmark-json={path.name}",
        "datetime": data["datetime"],
        "machine_info": {"cpu": {key: cpu.get(key) for key in ("brand_raw", "count")}},
        "benchmarks": [
            {"name": item["name"], "extra_info": item["extra_info"]} for item in data["benchmarks"]
        ],
    }
    (BASELINES / path.name).write_text(json.dumps(kept, indent=1) + "\n")


def unpack(archive: Path, root: Path) -> dict[str, dict[str, Any]]:
    """Unpack an archive below `root`, say which cells did not end well, and return all."""
    with tarfile.open(archive) as file:
        file.extractall(root, filter="data")
    cells = read_cells(root)
    for cell in cells.values():
        if cell["status"] != "ok":
            print(f"{cell['name']}: {cell['status']}\n{cell.get('error', '')[-300:]}")
    return cells


def main() -> None:
    """Unpack, and write every baseline that the cells give."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archives", type=Path, nargs="+")
    arguments = parser.parse_args()
    for path in [path for path in arguments.archives if path.suffix == ".json"]:
        keep_micro(path)
        arguments.archives.remove(path)
    if not arguments.archives:
        return
    with tempfile.TemporaryDirectory() as scratch:
        roots = [Path(scratch) / str(index) for index in range(len(arguments.archives))]
        every = [unpack(file, root) for file, root in zip(arguments.archives, roots, strict=True)]
        for name, content in pools(roots[0], every[0]):
            (BASELINES / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
            print(name, len(content["points"]), "points")
        found = [learning(root, cells) for root, cells in zip(roots, every, strict=True)]
        runs = [run for one in found for run in one["runs"]]
        if runs:
            content = found[0] | {"runs": runs}
            (BASELINES / "learning.json").write_text(json.dumps(content) + "\n")
            print("learning", len(runs), "runs")
        simulate(roots[0], every[0])


if __name__ == "__main__":
    main()
