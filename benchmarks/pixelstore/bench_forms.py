"""Bytes of one screenshot in each form, and the share that eight siblings need not store."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from awrl_pixelstore import PixelStoreCore
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

PATCH, TEMPORAL, FLOAT_BYTES = 16, 2, 4
SIBLINGS, STEPS, PAGES_PER_STEP = 8, 8, 3
"""Eight siblings walk through a task whose every step offers three pages, one of them likely."""
LIKELY = 0.7


def patch_bytes(height: int, width: int) -> int:
    """Return the bytes of float32 patches: 16 x 16 pixels, both temporal copies, 3 channels."""
    patches = (height // PATCH) * (width // PATCH)
    return patches * PATCH * PATCH * TEMPORAL * 3 * FLOAT_BYTES


def test_bytes_of_a_screenshot_in_each_form(
    benchmark: BenchmarkFixture,
    draw_page: Callable[..., NDArray[np.uint8]],
    encode: Callable[[NDArray[np.uint8], str], bytes],
) -> None:
    pages = [draw_page(seed) for seed in range(8)]
    sizes = {
        form: int(np.mean([len(encode(page, form)) for page in pages]))
        for form in ("JPEG", "WEBP", "PNG")
    }
    sizes["uint8"] = pages[0].nbytes
    sizes["float32_patches_1280x704"] = patch_bytes(704, 1280)
    assert sizes["float32_patches_1280x704"] == 21_626_880
    core = PixelStoreCore()
    benchmark(lambda: core.put(pages[0], trajectory_id="a"))
    benchmark.extra_info.update(sizes)


def test_dedup_share_of_eight_siblings(
    benchmark: BenchmarkFixture,
    draw_page: Callable[..., NDArray[np.uint8]],
    encode: Callable[[NDArray[np.uint8], str], bytes],
) -> None:
    pages = [
        [encode(draw_page(10 * step + page), "JPEG") for page in range(PAGES_PER_STEP)]
        for step in range(STEPS)
    ]

    def run_group() -> PixelStoreCore:
        generator = np.random.default_rng(0)
        core = PixelStoreCore()
        rest = (1 - LIKELY) / (PAGES_PER_STEP - 1)
        for sibling in range(SIBLINGS):
            on_path = True
            for step in range(STEPS):
                page = int(generator.choice(PAGES_PER_STEP, p=[LIKELY] + [rest] * 2))
                on_path = on_path and page == 0
                # Off the common path every page is the sibling's own.
                shot = pages[step][0] if on_path else pages[step][page] + bytes([sibling])
                core.put(shot, trajectory_id=f"sibling-{sibling}")
        return core

    core = benchmark(run_group)
    statistics = core.statistics()
    benchmark.extra_info.update(
        num_puts=statistics.num_puts,
        num_entries=statistics.num_entries,
        dedup_share=statistics.dedup_share,
    )
    assert statistics.num_puts == SIBLINGS * STEPS
