"""The grammar of `allocation_mode`, and where its errors point."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webrl.allocation import Allocation, parse_allocation
from webrl.errors import ConfigError


def sizes(allocation: Allocation) -> dict[str, int]:
    return {role.name: role.dims.num_devices for role in allocation.roles}


@pytest.mark.requirement("roles-on-own-devices")
def test_the_published_layout_has_48_and_16_separate_devices() -> None:
    allocation = parse_allocation("sglang[rollout]:d48+fsdp[actor]:d16")
    assert sizes(allocation) == {"rollout": 48, "actor": 16}
    assert allocation.num_devices == 64
    assert not allocation.shares_devices("rollout", "actor")
    assert allocation.role("actor").devices == range(48, 64)


@pytest.mark.requirement("allocation-grammar")
def test_a_bar_binds_tighter_than_a_plus() -> None:
    allocation = parse_allocation("sglang[r]:d2+fsdp[a]:d4|fsdp[c]:d4")
    assert sizes(allocation) == {"r": 2, "a": 4, "c": 4}
    assert allocation.num_devices == 6
    assert allocation.shares_devices("a", "c")
    assert not allocation.shares_devices("r", "a")


def test_parsing_twice_gives_equal_values() -> None:
    text = "sglang[r]:d2+fsdp[a]:d4|fsdp[c]:d4"
    assert parse_allocation(text) == parse_allocation(text)
    assert parse_allocation(text) != parse_allocation("sglang[r]:d2+fsdp[a]:d4")


def test_nameless_roles_are_called_by_what_they_do() -> None:
    allocation = parse_allocation("embedded:d2+fsdp:d1")
    assert sizes(allocation) == {"rollout": 2, "actor": 1}
    assert [role.kind for role in allocation.roles] == ["inference", "training"]


def test_dims_multiply_and_blanks_are_ignored() -> None:
    allocation = parse_allocation("  sglang:d4t2  +  fsdp:d2t2c2 ")
    assert sizes(allocation) == {"rollout": 8, "actor": 8}


@pytest.mark.requirement("allocation-grammar")
@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("", 0, "expects a backend"),
        ("+fsdp:d4", 0, "expects a backend"),
        ("sglang:d4+", 10, "got the end"),
        ("sglang.d4+fsdp.d4", 6, "with a ':', not a '.'"),
        ("sglang+fsdp:d4", 6, "expects ':'"),
        ("d4+d4", 0, "Write e.g. fsdp:d4"),
        ("sglang:", 7, "expects dims"),
        ("sglang:d", 8, "a number after 'd'"),
        ("sglang:d0", 8, "d >= 1, got d0"),
        ("fsdp:d4d2", 7, "'d' twice"),
        ("sglang:d4c2", 9, "allows the dims d t p for inference"),
        ("fsdp:d4x2", 7, "allows the dims d t p c e for training"),
        ("fsdp:d1234567", 6, "at most 6 digits"),
        ("fsdp:d2p2", 5, "p = 1 with fsdp"),
        ("fsdp:d2e2", 5, "e = 1 with fsdp"),
        ("sglang[a]:d1+fsdp[a]:d1", 18, "'a' twice"),
        ("sglang:d1+sglang:d1", 10, "'rollout' twice"),
        ("sglang[:d1", 7, "a role name"),
        ("sglang[r:d1", 8, "expects ']'"),
        ("sglang[a]:d1|fsdp[b]:d2", 13, "equal sizes, got 1 and 2"),
        ("sglang:d1|fsdp:d1", 0, "needs a name"),
        ("sglang:d4+fsdp:d4+fsdp:d3", 0, "one of three or more"),
        ("sglang:d4 fsdp:d4", 10, "'+' (separate devices) or '|' (shared)"),
        ("tgi:d4+fsdp:d4", 0, "got 'tgi'"),
        ("vllm:d4+fsdp:d4", 0, "speaks SGLang's HTTP"),
        ("sglang:d4+megatron:d4", 10, "FSDP2"),
        ("sglang:d4+megatron:(attn:d4|ffn:d4)", 10, "FSDP2"),
        ("sglang:d4+archon:d4", 10, "FSDP2"),
    ],
)
def test_an_error_points_at_the_character(text: str, position: int, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_allocation(text)
    message = str(caught.value)
    assert words in message
    assert message.splitlines()[-1] == "  " + " " * position + "^"


def test_an_unknown_role_is_named_with_the_ones_there_are() -> None:
    allocation = parse_allocation("sglang:d1+fsdp:d1")
    with pytest.raises(KeyError, match="one of 'rollout', 'actor', got 'critic'"):
        allocation.role("critic")
    assert allocation.find("critic") is None


def test_an_error_survives_pickling() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_allocation("vllm:d1")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.requirement("allocation-grammar")
@given(st.text(alphabet="sglangfdpembr[]:+|0123456789 tce.\n", max_size=40))
def test_reading_is_total(text: str) -> None:
    try:
        allocation = parse_allocation(text)
    except ConfigError as error:
        caret = str(error).splitlines()[-1]
        position, num_devices = caret.index("^") - 2, 1
    else:
        position, num_devices = 0, allocation.num_devices
    assert 0 <= position <= len(text)
    assert num_devices >= 1


@pytest.mark.requirement("roles-on-own-devices")
@given(
    st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), min_size=1, max_size=4),
    st.integers(1, 64),
)
def test_device_ranges_tile_the_total(shape: list[list[int]], size: int) -> None:
    names = iter(range(100))
    text = "+".join("|".join(f"fsdp[r{next(names)}]:d{size}" for _ in part) for part in shape)
    allocation = parse_allocation(text)
    covered = sorted({device for role in allocation.roles for device in role.devices})
    assert covered == list(range(allocation.num_devices))
    assert allocation.num_devices == size * len(shape)
