"""The same screenshots held as plain Ray objects and in the store: what Ray's store says.

Draws bytes resident in Ray's object store and bytes spilled to disk against screenshots held, in
pytest's temporary folder; or, to keep the picture, in the file that `PIXELSTORE_SPILL_PNG` names.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import ray
from awrl_pixelstore import PixelStoreClient
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture
from ray._private.internal_api import node_stats

mpl.use("Agg")
from matplotlib import pyplot as plt

NUM_SCREENS = 240
MB = 10**6


def accounting() -> tuple[float, float]:
    """Return resident and spilled megabytes by the raylet's own count."""
    node = ray.nodes()[0]
    address, port = node["NodeManagerAddress"], node["NodeManagerPort"]
    stats: Any = node_stats(address, port, include_memory_info=False).store_stats
    return stats.object_store_bytes_used / MB, stats.spilled_bytes_total / MB


def settle() -> None:
    """Wait until Ray has freed what was let go: it does so about once a second, in batches."""
    for _ in range(100):
        if accounting()[0] < 10:
            return
        time.sleep(0.1)


def curve(hold: Any, screen: NDArray[np.uint8]) -> list[tuple[float, float]]:
    """Hold screenshots one by one; return the accounting after each eighth."""
    points: list[tuple[float, float]] = []
    start = accounting()[1]
    for number in range(NUM_SCREENS):
        screen[0, 0] = (*divmod(number, 256), 7)
        hold(screen)
        if number % 8 == 7:
            resident, spilled = accounting()
            points.append((resident, spilled - start))
    return points


def test_what_spills(
    benchmark: BenchmarkFixture,
    store: PixelStoreClient,
    screen: NDArray[np.uint8],
    tmp_path: Path,
) -> None:
    settle()
    in_store = curve(lambda image: store.put(image, trajectory_id="a"), screen)
    settle()
    left_mb = accounting()[0]
    references: list[Any] = []
    plain = benchmark.pedantic(
        curve, args=(lambda image: references.append(ray.put(image)), screen), rounds=1
    )
    draw(in_store, plain, os.environ.get("PIXELSTORE_SPILL_PNG") or tmp_path / "spill.png")
    benchmark.extra_info.update(
        screens=NUM_SCREENS,
        megabytes=NUM_SCREENS * screen.nbytes / MB,
        plain_spilled_mb=plain[-1][1],
        store_spilled_mb=in_store[-1][1],
        store_settled_resident_mb=left_mb,
        store_peak_resident_mb=max(resident for resident, _ in in_store),
    )
    assert plain[-1][1] > 0
    assert in_store[-1][1] == 0


def draw(
    in_store: list[tuple[float, float]], plain: list[tuple[float, float]], path: str | Path
) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharex=True)
    held = np.arange(8, NUM_SCREENS + 1, 8)
    for column, title in enumerate(("resident in Ray's object store", "spilled to disk")):
        for points, label in ((plain, "plain objects"), (in_store, "PixelStore")):
            axes[column].plot(held, [point[column] for point in points], label=label)
        axes[column].set(title=title, xlabel="screenshots held (1280x720x3)", ylabel="MB")
        axes[column].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
