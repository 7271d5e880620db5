"""The read cache of a client."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pytest
from awrl_pixelstore.cache import ReadCache
from awrl_pixelstore.freed import FreedLog
from awrl_pixelstore.keys import make_key
from awrl_pixelstore.wire import Reply
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

MakeArray: TypeAlias = Callable[..., NDArray[np.uint8]]


def key_of(number: int, shard: int = 0) -> str:
    return make_key("00000000", shard, f"{number:032x}")


def reply(sequence: int, freed: tuple[str, ...] | None = None, incarnation: str = "i") -> Reply:
    return Reply(None, 0, 1, incarnation, sequence, freed)


def test_the_bound_holds_and_the_least_recently_used_goes() -> None:
    cache = ReadCache(10)
    for number in range(3):
        cache.add(key_of(number), bytes(4))
        cache.find(key_of(0))
    assert cache.find(key_of(1)) is None
    assert cache.find(key_of(0)) == bytes(4)
    cache.add(key_of(9), bytes(11))
    assert cache.find(key_of(9)) is None
    statistics = cache.statistics()
    assert (statistics.num_entries, statistics.num_bytes) == (2, 8)
    assert (statistics.num_hits, statistics.num_misses) == (4, 2)


def test_arrays_that_are_still_held_are_shared_beyond_the_bound(make_array: MakeArray) -> None:
    cache = ReadCache(10)
    array = make_array()
    cache.add(key_of(0), array)
    assert cache.statistics().num_entries == 0
    assert cache.find(key_of(0)) is array
    cache.absorb(0, ("i", 0), reply(1, (key_of(0),)))
    assert cache.find(key_of(0)) is None
    cache.add(key_of(1), array)
    del array
    assert cache.find(key_of(1)) is None


def test_a_bound_of_zero_keeps_nothing(make_array: MakeArray) -> None:
    cache = ReadCache(0)
    array = make_array()
    cache.add(key_of(0), array)
    cache.add(key_of(1), b"x")
    assert cache.find(key_of(0)) is cache.find(key_of(1)) is None
    assert cache.seen(0) is None


def test_an_answer_to_a_call_that_did_not_ask_does_not_move_the_mark() -> None:
    cache = ReadCache(100)
    assert cache.absorb(0, None, reply(3))
    cache.add(key_of(0), b"x")
    assert cache.seen(0) == ("i", 3)
    # Sent before anything was cached, answered after a release that nobody reported yet.
    assert not cache.absorb(0, None, reply(4))
    assert cache.seen(0) == ("i", 3)
    assert cache.absorb(0, ("i", 3), reply(4, (key_of(0),)))
    assert cache.find(key_of(0)) is None
    assert cache.seen(0) is None


def test_a_log_that_no_longer_knows_empties_the_shard_only() -> None:
    cache = ReadCache(100)
    for shard in (0, 1):
        cache.absorb(shard, None, reply(1))
        cache.add(key_of(0, shard), b"x")
    cache.absorb(0, ("i", 1), reply(99999))
    assert cache.find(key_of(0, 0)) is None
    assert cache.find(key_of(0, 1)) == b"x"
    cache.absorb(1, ("i", 1), reply(1, None, incarnation="other"))
    assert cache.statistics().num_entries == 0
    cache.add(key_of(5), b"x")
    cache.clear()
    assert cache.statistics().num_bytes == 0


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(0, 70), st.integers(1, 20))
def test_a_freed_log_names_all_or_says_that_it_cannot(
    numbers: list[int], sequence: int, length: int
) -> None:
    log = FreedLog(length)
    keys = [key_of(number) for number in numbers]
    for key in keys:
        log.append(key)
    assert log.sequence == len(keys)
    freed = log.since(sequence)
    if 0 <= len(keys) - sequence <= length:
        assert list(freed or ()) == keys[sequence:]
    else:
        assert freed is None


@pytest.mark.parametrize("size", [1, 5])
def test_adding_twice_counts_once(size: int) -> None:
    cache = ReadCache(20)
    cache.add(key_of(0), bytes(size))
    cache.add(key_of(0), bytes(size))
    assert cache.statistics().num_bytes == size
