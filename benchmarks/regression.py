"""Compares ratios of new JSON with the baselines; exits with 1 when one is clearly worse.

    python benchmarks/regression.py FOLDER [--tolerance 0.15]

Only ratios are compared, since seconds of two machines are not: asynchronous over synchronous, shares
of an ideal, idle shares, costs against a reference in the same run. Files are matched by name; a
figure that only one side has is left out.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BASELINES = Path(__file__).parent / "baselines"
HIGHER = re.compile(r"over_synchronous|share_of_ideal$")
"""Figures of which more is better."""
LOWER = re.compile(r"everlasting\w*$|core_share$|ratio_of_\w+$|_to_raw$|_over_\w+$|\.ratio$")
"""Figures of which less is better."""
FLOOR = 0.02
"""Shares below this are noise: a change within it is none."""


def ratios(data: Mapping[str, Any]) -> dict[str, float]:
    """Return every figure of a file that can be compared between machines."""
    found: dict[str, float] = {}
    for item in data.get("benchmarks", []):
        collect(item.get("extra_info", {}), f"{item['name']}.", found)
    points = data.get("points", [])
    base = next((p["episodes_per_s"] for p in points if p["mode"] == "synchronous"), None)
    for point in points:
        if point["mode"] == "synchronous":
            continue
        without = f", without {point['without']}" if "without" in point else ""
        name = f"slots {point['slots']}, eta {point['eta']}{without}"
        found[f"{name}.share_of_ideal"] = point["share_of_ideal"]
        if base:
            found[f"{name}.over_synchronous"] = point["episodes_per_s"] / base
    return found


def collect(tree: Mapping[str, Any], prefix: str, found: dict[str, float]) -> None:
    """Add the comparable numbers of a tree."""
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            collect(value, f"{name}.", found)
        elif isinstance(value, (int, float)) and (HIGHER.search(name) or LOWER.search(name)):
            found[name] = float(value)


def is_worse(name: str, before: float, now: float, tolerance: float) -> bool:
    """Return whether a figure is clearly worse than it was."""
    loss = before - now if HIGHER.search(name) else now - before
    return loss > max(FLOOR, tolerance * abs(before))


def main() -> int:
    """Compare, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tolerance", type=float, default=0.15)
    arguments = parser.parse_args()
    worse = compared = 0
    for path in sorted(arguments.folder.glob("*.json")):
        baseline = BASELINES / path.name
        if not baseline.exists():
            continue
        before = ratios(json.loads(baseline.read_text()))
        now = ratios(json.loads(path.read_text()))
        for name in sorted(before.keys() & now.keys()):
            bad = is_worse(name, before[name], now[name], arguments.tolerance)
            compared += 1
            worse += bad
            mark = "WORSE" if bad else "ok"
            print(f"{mark:<6}{path.name}  {name}: {before[name]:.4g} -> {now[name]:.4g}")
    print(f"{compared} ratios compared, {worse} worse")
    return int(worse > 0 or compared == 0)


if __name__ == "__main__":
    sys.exit(main())
