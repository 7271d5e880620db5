"""Baselines from the archive that `grid.py` leaves.

    python benchmarks/collect.py OUT/grid.tar.gz
    python -m pytest benchmarks/staleness --benchmark-json=staleness.json
    python benchmarks/collect.py staleness.json     # of pytest-benchmark: without the timings of its rounds
    python benchmarks/results.py && python benchmarks/pools/picture.py && python benchmarks/learning/curve.py --baseline

Writes `baselines/pools-*.json` (one file for each number of slots, one for equal lengths, one for what
was taken away), `baselines/learning.json`, and `baselines/simulate-pools-*.json`: each pool beside its
simulation from the recorded asynchronous run. What an archive lacks stays as it was recorded: a pool's point
until the archive has one of its mode and eta, and every learning run; the same run of an archive counts once.
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
            points = with_recorded(f"pools-{slots}{kind}", points)
            head = {
                k: contents[0][k] for k in ("workload", "mean_steps", "latency_s", "latency_cv")
            }
            yield (
                f"pools-{slots}{kind}",
                head | {"points": points} | described([cells[name] for name in names]),
            )


def with_recorded(name: str, points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return these points and the recorded ones of modes that are not among them, in order."""

    def which(point: dict[str, Any]) -> tuple[str, int, str]:
        return point["mode"], point["eta"], point.get("without", "")

    path = BASELINES / f"{name}.json"
    recorded = json.loads(path.read_text())["points"] if path.exists() else []
    known = {which(point): point for point in recorded + points}
    return [known[key] for key in sorted(known)]


def learning(root: Path, cells: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the record of each learning run, and where they ran; first those recorded before."""
    path = BASELINES / "learning.json"
    runs: list[dict[str, Any]] = json.loads(path.read_text())["runs"] if path.exists() else []
    used: list[dict[str, Any]] = []
    for name, cell in cells.items():
        match = re.fullmatch(r"learning-(.+)-seed(\d+)", name)
        if match and (root / name / "evaluations.jsonl").exists():
            what = {"name": match[1], "seed": int(match[2]), "status": cell["status"]}
            run = what | record_of(root / name)
            if run not in runs:
                runs.append(run)
            used.append(cell)
    runs.sort(key=lambda run: (run["name"], run["seed"]))
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
    for archive in arguments.archives:
        with tempfile.TemporaryDirectory() as scratch:
            keep_cells(archive, Path(scratch))


def keep_cells(archive: Path, root: Path) -> None:
    """Write every baseline that a grid's archive gives."""
    cells = unpack(archive, root)
    for name, content in pools(root, cells):
        (BASELINES / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
        print(name, len(content["points"]), "points")
    content = learning(root, cells)
    if any(name.startswith("learning-") for name in cells):
        (BASELINES / "learning.json").write_text(json.dumps(content) + "\n")
        print("learning", len(content["runs"]), "runs")
    simulate(root, cells)


if __name__ == "__main__":
    main()
