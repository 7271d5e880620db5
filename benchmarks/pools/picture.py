"""What the staleness bound buys, from the recorded pools: `docs/pools.png`.

    python benchmarks/pools/picture.py

Reads `baselines/pools-*.json`, as `results.py` does.
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).parents[2]
BASELINES = ROOT / "benchmarks" / "baselines"
SLOTS = (8, 16, 32)


def main() -> None:
    """Draw rate over the synchronous pool's and share of the ideal, by eta and slots."""
    figure, (rate, ideal) = plt.subplots(1, 2, figsize=(9.2, 3.4), dpi=130)
    for slots in SLOTS:
        points = json.loads((BASELINES / f"pools-{slots}.json").read_text())["points"]
        base = next(p for p in points if p["mode"] == "synchronous")
        own = sorted((p for p in points if p["mode"] != "synchronous"), key=lambda p: p["eta"])
        etas = [str(p["eta"]) for p in own]
        ratios = [p["episodes_per_s"] / base["episodes_per_s"] for p in own]
        (line,) = rate.plot(etas, ratios, marker="o", label=f"{slots} slots")
        ideal.plot(etas, [p["share_of_ideal"] for p in own], marker="o", c=line.get_color())
        ideal.axhline(base["share_of_ideal"], lw=0.9, ls=":", c=line.get_color())
    rate.axhline(1.0, lw=0.9, ls=":", c="0.4")
    rate.text(3.0, 1.06, "synchronous", color="0.4", fontsize=8)
    rate.set(xlabel="eta (max_head_offpolicyness)", ylim=(0, None))
    rate.set_title("episodes/s over the synchronous pool", fontsize=10)
    rate.legend(loc="lower right", bbox_to_anchor=(1.0, 0.28), fontsize=8)
    ideal.set(xlabel="eta (max_head_offpolicyness)", ylim=(0, 1.06))
    ideal.set_title("share of the ideal (dotted: synchronous)", fontsize=10)
    for axes in (rate, ideal):
        axes.grid(visible=True, alpha=0.25)
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "pools.png")


if __name__ == "__main__":
    main()
