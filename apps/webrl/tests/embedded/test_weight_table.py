from __future__ import annotations

import re
from typing import cast

import pytest
import torch
from awrl_trainer import tensor_checksum as trainer_checksum
from webrl.embedded.weight_group import WeightGroups, parse_specs
from webrl.embedded.weights import SentTensor, WeightTable, tensor_checksum
from webrl.embedded.wire import InitGroupBody
from webrl.errors import WeightUpdateError


class Tied(torch.nn.Module):
    """An embedding whose head is the same tensor, and a layer beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(5, 3)
        self.layer = torch.nn.Linear(3, 3)
        self.ahead = torch.nn.Linear(3, 5, bias=False)
        self.ahead.weight = self.embed.weight


def spec(name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> SentTensor:
    return SentTensor(name=name, shape=shape, dtype=dtype)


def test_an_update_is_copied_into_the_model() -> None:
    model = Tied()
    WeightTable(model).apply({"layer.weight": torch.ones(3, 3), "layer.bias": torch.zeros(3)})
    assert torch.equal(model.layer.weight.data, torch.ones(3, 3))


def test_a_tied_weight_goes_by_either_name_and_is_listed_once() -> None:
    model = Tied()
    table = WeightTable(model)
    table.apply({"ahead.weight": torch.full((5, 3), 2.0)})
    assert torch.equal(model.embed.weight.data, torch.full((5, 3), 2.0))
    assert sorted(table.checksums()) == ["embed.weight", "layer.bias", "layer.weight"]
    assert table.missing(["ahead.weight", "layer.bias"]) == ["layer.weight"]
    assert table.aliases() == [("ahead.weight", "embed.weight")]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (spec("nothing", (3,)), "'nothing' must be a name of the model, got an unknown one"),
        (spec("layer.bias", (4,)), r"'layer.bias' must have shape \[3\], got \[4\]"),
        (spec("layer.bias", (3,), torch.bfloat16), "must have dtype float32, got bfloat16"),
    ],
)
def test_what_does_not_fit_is_named(wrong: SentTensor, message: str) -> None:
    (problem,) = WeightTable(Tied()).problems([wrong])
    assert re.search(message, problem)


def test_a_name_that_comes_twice_is_named() -> None:
    problems = WeightTable(Tied()).problems([spec("layer.bias", (3,))] * 2)
    assert problems == ["'layer.bias' must come once, got it twice"]


def test_a_refused_update_changes_nothing() -> None:
    model = Tied()
    table = WeightTable(model)
    before = table.checksums()
    with pytest.raises(WeightUpdateError, match="'nothing' must be a name"):
        table.apply({"layer.bias": torch.full((3,), 7.0), "nothing": torch.ones(1)})
    assert table.checksums() == before


def test_checksums_are_the_trainer_s() -> None:
    generator = torch.Generator().manual_seed(1)
    for dtype in (torch.float32, torch.bfloat16):
        tensor = torch.randn((4, 6), generator=generator).to(dtype)
        for view in (tensor, tensor.T, tensor[1:, ::2]):
            assert tensor_checksum(view) == trainer_checksum(view)


def test_checksums_of_some_names_are_given_and_unknown_ones_refused() -> None:
    table = WeightTable(Tied())
    assert list(table.checksums(["layer.bias"])) == ["layer.bias"]
    with pytest.raises(WeightUpdateError, match="'other' must be a name"):
        table.checksums(["other"])


@pytest.mark.parametrize(
    ("names", "dtypes", "shapes", "message"),
    [
        ([], [], [], "one length > 0, got 0, 0 and 0"),
        (["a"], ["float32", "float32"], [[1]], "got 1, 2 and 1"),
        (["a"], ["float33"], [[1]], "dtype of 'a' must be a torch dtype, got 'float33'"),
        (["a"], ["nn"], [[1]], "dtype of 'a' must be a torch dtype, got 'nn'"),
        (["a"], ["float32"], [[-1]], "shape of 'a' must not be negative"),
    ],
)
def test_specs_that_say_nothing_receivable_are_refused(
    names: list[str], dtypes: list[str], shapes: list[list[int]], message: str
) -> None:
    with pytest.raises(WeightUpdateError, match=message):
        parse_specs(names, dtypes, shapes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_name": ""}, "group_name must not be empty"),
        ({"rank_offset": 0}, r"rank_offset must be in \[1, world_size\), got 0 of 2"),
        ({"rank_offset": 2}, "got 2 of 2"),
        ({"tp_size": 2}, "for tp_size 2, got 1 of 2"),
        ({"backend": "mpi"}, "backend must be 'gloo' or 'nccl', got 'mpi'"),
        ({"backend": "nccl"}, "backend must be 'gloo' on cpu, got 'nccl'"),
    ],
)
def test_a_group_that_can_not_be_is_refused_before_anybody_is_waited_for(
    changes: dict[str, object], message: str
) -> None:
    size = cast("int", changes.pop("tp_size", 1))
    fields: dict[str, object] = {
        "master_address": "127.0.0.1",
        "master_port": 1,
        "rank_offset": 1,
        "world_size": 2,
        "group_name": "g",
        "backend": "gloo",
    }
    body = InitGroupBody(**{**fields, **changes})  # pyright: ignore[reportArgumentType]
    with pytest.raises(WeightUpdateError, match=message):
        WeightGroups(device="cpu", timeout_s=1, tp_size=size).join(body)
