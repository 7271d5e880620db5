"""A disk without room."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager

import pytest


@contextmanager
def _full_disk(room: int) -> Generator[None]:
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


@pytest.fixture
def full_disk() -> Callable[[int], AbstractContextManager[None]]:
    """Return what lets no file grow beyond so many bytes, as a full disk does."""
    return _full_disk
