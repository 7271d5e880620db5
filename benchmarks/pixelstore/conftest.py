"""A local Ray for the store's figures; every figure also lands in `extra_info`."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import ray
from awrl_pixelstore import PixelStoreClient, PixelStoreConfig, get_or_create_pixel_store
from numpy.typing import NDArray
from PIL import Image, ImageDraw

SCREEN = (720, 1280, 3)
START_ATTEMPTS = 4
"""Ray gives its daemon 30 s to start, which a busy machine does not always keep."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """Two CPUs and 400 MB of object store, apart from any other cluster of the machine."""
    for attempt in range(START_ATTEMPTS):
        try:
            ray.init(
                "local",
                num_cpus=2,
                include_dashboard=False,
                object_store_memory=400 * 2**20,
                log_to_driver=False,
            )
            break
        except Exception:
            ray.shutdown()
            if attempt == START_ATTEMPTS - 1:
                raise
    yield
    ray.shutdown()


@pytest.fixture
def store(cluster: None) -> Iterator[PixelStoreClient]:
    """A store of one shard without a read cache, so that every get is a call."""
    config = PixelStoreConfig(max_bytes=4 * 2**30, read_cache_bytes=0)
    store = get_or_create_pixel_store("benchmarks", num_shards=1, config=config)
    yield store
    store.release("a")


@pytest.fixture(scope="session")
def screen() -> NDArray[np.uint8]:
    """Random pixels `[720, 1280, 3]`: the worst case for every encoder, the usual one for copies."""
    return np.random.default_rng(0).integers(0, 256, SCREEN, dtype=np.uint8)


@pytest.fixture(scope="session")
def draw_page() -> Callable[..., NDArray[np.uint8]]:
    """Return pages by seed: header, paragraphs, buttons and one photograph."""
    return page_of


@pytest.fixture(scope="session")
def encode() -> Callable[[NDArray[np.uint8], str], bytes]:
    """Return an encoder to `PNG`, `JPEG` or `WEBP`, the last two at quality 80."""
    return encode_as


def page_of(seed: int, height: int = 720, width: int = 1280) -> NDArray[np.uint8]:
    """Return the pixels `[height, width, 3]`, uint8, of a page-like screenshot."""
    generator = np.random.default_rng(seed)
    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, width, height // 12), fill=(32, 64, 128))
    words = ["web", "agent", "search", "result", "price", "cart", "menu", "next", "about", "news"]
    for line in range(height // 10, height - 20, 16):
        text = " ".join(generator.choice(words, size=14))
        draw.text((16, line), text, fill=(20, 20, 20))
    for _ in range(6):
        left, top = int(generator.integers(width // 2)), int(generator.integers(height - 40))
        draw.rectangle((left, top, left + 120, top + 32), fill=(0, 120, 215))
        draw.text((left + 10, top + 10), str(generator.choice(words)), fill="white")
    side = height // 3
    noise = generator.integers(0, 256, (side // 8, side // 8, 3), dtype=np.uint8)
    photo = Image.fromarray(noise).resize((side, side), Image.Resampling.BICUBIC)
    image.paste(photo, (width - side - 20, height // 6))
    return np.asarray(image)


def encode_as(pixels: NDArray[np.uint8], form: str) -> bytes:
    """Return the pixels as `PNG`, `JPEG` (quality 80) or `WEBP` (quality 80)."""
    target = io.BytesIO()
    Image.fromarray(pixels).save(target, form, quality=80)
    return target.getvalue()
