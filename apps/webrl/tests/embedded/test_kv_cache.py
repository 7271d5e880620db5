from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.cache_utils import DynamicCache
from webrl.embedded.kv_cache import PromptKV, RowCache

HEADS, SIZE, LAYERS = 2, 3, 2


def prompt(length: int, seed: int) -> PromptKV:
    generator = torch.Generator().manual_seed(seed)
    keys = [torch.randn((HEADS, length, SIZE), generator=generator) for _ in range(LAYERS)]
    return PromptKV(keys, [layer + 1 for layer in keys])


def step(cache: RowCache, lengths: list[int], seed: int) -> list[torch.Tensor]:
    """Append one place to every row; return the new keys by layer, [R, H, D]."""
    view = cache.view(lengths)
    generator = torch.Generator().manual_seed(seed)
    added: list[torch.Tensor] = []
    for layer in range(LAYERS):
        new = torch.randn((len(lengths), HEADS, 1, SIZE), generator=generator)
        keys, values = view.update(new, new + 1, layer)
        assert keys.shape == values.shape == (len(lengths), HEADS, max(lengths) + 1, SIZE)
        added.append(new[:, :, 0])
    return added


@settings(deadline=None)
@given(
    events=st.lists(
        st.one_of(
            st.integers(1, 9).map(lambda n: ("add", n)),
            st.integers(0, 9).map(lambda n: ("remove", n)),
            st.just(("step", 0)),
        ),
        max_size=40,
    )
)
def test_rows_hold_exactly_what_was_written_whatever_joins_and_leaves(
    events: list[tuple[str, int]],
) -> None:
    cache = RowCache()
    rows: list[list[torch.Tensor]] = []
    for number, (kind, value) in enumerate(events):
        if kind == "add":
            added = prompt(value, number)
            cache.append(added)
            rows.append([layer.clone() for layer in added.keys])
        elif kind == "remove" and rows:
            row = value % len(rows)
            cache.remove(row, rows[-1][0].shape[1])
            rows[row] = rows[-1]
            rows.pop()
        elif kind == "step" and rows:
            new = step(cache, [row[0].shape[1] for row in rows], number)
            for index, row in enumerate(rows):
                for layer in range(LAYERS):
                    row[layer] = torch.cat([row[layer], new[layer][index][:, None]], dim=1)
        assert cache.num_rows == len(rows)
    if rows:
        lengths = [row[0].shape[1] for row in rows]
        view = cache.view(lengths)
        blank = torch.zeros((len(rows), HEADS, 1, SIZE))
        for layer in range(LAYERS):
            keys, values = view.update(blank, blank, layer)
            for index, row in enumerate(rows):
                assert torch.equal(keys[index, :, : lengths[index]], row[layer])
                assert torch.equal(values[index, :, : lengths[index]], row[layer] + 1)


def test_the_mask_shows_a_row_its_own_places_and_the_new_one() -> None:
    cache = RowCache()
    cache.append(prompt(2, 1))
    cache.append(prompt(4, 2))
    mask = cache.view([2, 4]).attention_mask()
    assert mask.shape == (2, 1, 1, 5)
    assert mask[:, 0, 0].tolist() == [[True] * 3 + [False] * 2, [True] * 5]


def test_a_prefill_gives_each_row_its_own_places() -> None:
    cache = DynamicCache()
    keys = torch.arange(2 * HEADS * 4 * SIZE, dtype=torch.float32).reshape(2, HEADS, 4, SIZE)
    cache.update(keys, keys + 1, 0)
    kept = PromptKV.of_row(cache, 1, 3)
    assert kept.num_tokens == 3
    assert torch.equal(kept.keys[0], keys[1, :, :3])
    assert torch.equal(kept.values[0], keys[1, :, :3] + 1)
    keys.zero_()
    assert bool(kept.keys[0].any())


def test_an_emptied_cache_takes_new_rows() -> None:
    cache = RowCache()
    cache.append(prompt(3, 1))
    cache.clear()
    assert cache.num_rows == 0
    cache.append(prompt(2, 2))
    assert cache.num_rows == 1
