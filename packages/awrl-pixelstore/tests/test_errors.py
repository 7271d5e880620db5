"""Errors cross process borders unchanged."""

from __future__ import annotations

import pickle

import pytest
from awrl_pixelstore import (
    InvalidImage,
    PixelNotFound,
    PixelStoreError,
    PixelStoreFull,
    PixelStoreUnavailable,
)

FULL = PixelStoreFull(shard=3, tier="disk", requested_bytes=5, used_bytes=6, limit_bytes=7)


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (InvalidImage("image"), ValueError),
        (PixelNotFound(["k1", "k2"], found={"k3": b"x"}), KeyError),
        (FULL, MemoryError),
        (PixelStoreUnavailable("nothing", shard=2, keys=["k"], limit_s=1.5), ConnectionError),
    ],
)
def test_every_error_is_a_builtin_and_pickles(
    error: PixelStoreError, builtin: type[Exception]
) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, builtin)
    assert isinstance(copy, PixelStoreError)
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__


def test_a_message_names_shard_limit_and_the_first_keys() -> None:
    keys = [f"k{number}" for number in range(8)]
    error = PixelStoreUnavailable("no answer", shard=2, keys=keys, limit_s=1.5)
    assert "shard 2 must answer within 1.5 s" in str(error)
    assert "'k4' and 3 more" in str(error)
    assert error.keys == tuple(keys)
    assert "disk budget of 7 bytes of shard 3" in str(FULL)
