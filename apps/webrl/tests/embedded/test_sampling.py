from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from webrl.embedded.sampling import SamplingRow, draw_tokens, uniform

NUM_DRAWS = 4000


def row(**changes: object) -> SamplingRow:
    fields: dict[str, object] = {
        "temperature": 1.0,
        "is_greedy": False,
        "top_p": 1.0,
        "top_k": -1,
        "bias": None,
        "seed": 1,
        "position": 0,
    }
    return SamplingRow(**{**fields, **changes})  # pyright: ignore[reportArgumentType]


def frequencies(logits: list[float], **changes: object) -> list[float]:
    rows = [row(**{**changes, "position": index}) for index in range(NUM_DRAWS)]
    token_ids, _ = draw_tokens(torch.tensor([logits] * NUM_DRAWS), rows)
    return [token_ids.count(token) / NUM_DRAWS for token in range(len(logits))]


def test_the_temperature_divides_the_logits_before_the_softmax() -> None:
    logits = torch.tensor([[2.0, 0.0]] * 2)
    rows = [row(temperature=0.5, bias=torch.tensor([0.0, -1e9]))] * 2
    token_ids, masked = draw_tokens(logits, rows)
    assert token_ids == [0, 0]
    assert masked == pytest.approx([0.0, 0.0])
    greedy = row(temperature=0.5, is_greedy=True)
    _, (value, _) = draw_tokens(logits, [greedy] * 2)
    assert value == pytest.approx(-0.018150, abs=1e-6)


def test_draws_follow_the_distribution() -> None:
    found = frequencies([math.log(0.5), math.log(0.3), math.log(0.2)])
    assert found == pytest.approx([0.5, 0.3, 0.2], abs=0.03)


def test_draws_follow_the_tempered_distribution() -> None:
    found = frequencies([math.log(0.5), math.log(0.25)], temperature=0.5)
    assert found == pytest.approx([0.8, 0.2], abs=0.03)


def test_top_k_restricts_the_draw() -> None:
    found = frequencies([math.log(0.5), math.log(0.3), math.log(0.2)], top_k=2)
    assert found == pytest.approx([0.625, 0.375, 0.0], abs=0.03)


def test_the_nucleus_restricts_the_draw_and_not_the_logprob() -> None:
    logits = [math.log(0.2), math.log(0.5), math.log(0.3)]
    found = frequencies(logits, top_p=0.6)
    assert found == pytest.approx([0.0, 0.625, 0.375], abs=0.03)
    _, logprobs = draw_tokens(torch.tensor([logits]), [row(top_p=0.1)])
    assert logprobs == pytest.approx([math.log(0.5)])


def test_a_masked_id_is_never_drawn_and_takes_no_probability() -> None:
    bias = torch.tensor([-1e9, 0.0, 0.0])
    logits = [9.0, math.log(0.75), math.log(0.25)]
    found = frequencies(logits, bias=bias)
    assert found == pytest.approx([0.0, 0.75, 0.25], abs=0.03)
    token_ids, (logprob,) = draw_tokens(torch.tensor([logits]), [row(bias=bias)])
    exact = torch.log_softmax(torch.tensor(logits).masked_fill(bias < 0, -torch.inf), dim=0)
    assert logprob == float(exact[token_ids[0]])


def test_rows_of_one_batch_keep_their_own_settings() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0]] * 3)
    rows = [
        row(is_greedy=True),
        row(bias=torch.tensor([-1e9, 0.0, -1e9])),
        row(temperature=2.0, top_k=1),
    ]
    token_ids, logprobs = draw_tokens(logits, rows)
    assert token_ids == [0, 1, 0]
    tempered = torch.log_softmax(logits[2] / 2.0, dim=0)[0]
    assert logprobs == pytest.approx([-0.407606, 0.0, float(tempered)], abs=1e-5)


@settings(deadline=None)
@given(seed=st.integers(0, 2**63), position=st.integers(0, 10_000), mates=st.integers(0, 5))
def test_a_draw_depends_on_seed_and_position_alone(seed: int, position: int, mates: int) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn((1, 40), generator=generator)
    alone = draw_tokens(logits, [row(seed=seed, position=position)])
    others = [row(seed=seed + 1 + index, position=7) for index in range(mates)]
    batch = torch.cat([torch.randn((mates, 40), generator=generator), logits])
    together = draw_tokens(batch, [*others, row(seed=seed, position=position)])
    assert together[0][-1] == alone[0][0]
    assert together[1][-1] == pytest.approx(alone[1][0], abs=1e-6)


@settings(deadline=None)
@given(seed=st.integers(0, 2**64), position=st.integers(0, 2**31))
def test_uniform_numbers_lie_in_the_half_open_interval(seed: int, position: int) -> None:
    assert 0.0 <= uniform(seed, position) < 1.0


def test_uniform_numbers_of_neighbours_are_spread() -> None:
    values = [uniform(seed, position) for seed in range(40) for position in range(40)]
    assert len(set(values)) == len(values)
    assert sum(values) / len(values) == pytest.approx(0.5, abs=0.02)


def test_an_id_of_probability_zero_is_not_drawn_at_either_edge() -> None:
    logits = torch.tensor([[-1e9, 0.0, -1e9]] * 200)
    token_ids, _ = draw_tokens(logits, [row(position=index) for index in range(200)])
    assert set(token_ids) == {1}
