from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from webrl.embedded.byte_cache import ByteCache


@settings(deadline=None)
@given(
    puts=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12)), max_size=60),
    bound=st.integers(0, 20),
)
def test_the_bound_holds_and_the_latest_that_fit_are_kept(
    puts: list[tuple[int, int]], bound: int
) -> None:
    cache: ByteCache[int, int] = ByteCache(bound)
    model: dict[int, int] = {}
    for key, size in puts:
        cache.put(key, size, size)
        model.pop(key, None)
        if size <= bound:
            model[key] = size
            while sum(model.values()) > bound:
                del model[next(iter(model))]
        assert cache.num_bytes == sum(model.values()) <= bound
        assert {k: cache.get(k) for k in range(6)} == {k: model.get(k) for k in range(6)}
        model = {k: model[k] for k in sorted(model)}
    assert len(cache) == len(model)


def test_a_read_makes_an_entry_the_most_recent() -> None:
    cache: ByteCache[str, int] = ByteCache(2)
    cache.put("a", 1, 1)
    cache.put("b", 2, 1)
    cache.get("a")
    cache.put("c", 3, 1)
    assert cache.get("b") is None
    assert cache.get("a") == 1


def test_clear_drops_everything() -> None:
    cache: ByteCache[str, int] = ByteCache(2)
    cache.put("a", 1, 1)
    cache.clear()
    assert cache.get("a") is None
    assert cache.num_bytes == 0
