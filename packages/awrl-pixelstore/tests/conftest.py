"""One small local Ray cluster for all tests of this folder, and images."""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Callable, Generator
from pathlib import Path

import numpy as np
import pytest
import ray
from numpy.typing import NDArray

MakeArray = Callable[..., NDArray[np.uint8]]
MakePng = Callable[..., bytes]
HERE = Path(__file__).parent
START_ATTEMPTS = 4
"""Ray gives its daemon 30 s to start, which a busy machine does not always keep."""


@pytest.fixture
def cluster() -> None:
    """Two CPUs and 300 MB of object store; a cluster takes seconds, so the tests share it."""
    for _ in range(START_ATTEMPTS):
        if ray.is_initialized():
            return
        try:
            ray.init(
                "local",
                num_cpus=2,
                include_dashboard=False,
                object_store_memory=300 * 2**20,
                log_to_driver=False,
                _system_config={"free_objects_period_milliseconds": 20},
            )
        except Exception as error:  # noqa: BLE001 - Ray raises plain ones
            logging.getLogger(__name__).warning("Ray did not start: %s", error)
            ray.shutdown()
    assert ray.is_initialized()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    """End the cluster when the next test stands outside of this folder."""
    yield
    if ray.is_initialized() and (nextitem is None or HERE not in nextitem.path.parents):
        ray.shutdown()


@pytest.fixture(scope="session")
def make_array() -> MakeArray:
    """Return distinct random pixels for each seed."""

    def make(seed: int = 0, shape: tuple[int, int, int] = (8, 6, 3)) -> NDArray[np.uint8]:
        return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)

    return make


@pytest.fixture(scope="session")
def make_png() -> MakePng:
    """Return a valid RGB PNG of the given size, distinct for each seed."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + checksum

    def make(seed: int = 0, height: int = 160, width: int = 224) -> bytes:
        pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
        rows = b"".join(b"\0" + row.tobytes() for row in pixels)
        head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")
        return b"\x89PNG\r\n\x1a\n" + body

    return make
