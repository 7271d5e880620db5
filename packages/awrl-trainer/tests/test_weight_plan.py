from __future__ import annotations

import pickle

import pytest
import torch
from awrl_trainer import Bucket, PublishError, WeightSender, tensor_checksum
from awrl_trainer.weights.plan import plan_publish
from hypothesis import given
from hypothesis import strategies as st


def test_buckets_are_bounded_one_dtype_and_in_order() -> None:
    weights = {
        "a": torch.zeros(4),
        "big": torch.zeros(100),
        "count": torch.zeros(2, dtype=torch.int64),
        "b": torch.zeros(4),
        "c": torch.zeros(4),
    }
    plan = plan_publish(weights.items(), bucket_bytes=16)
    assert [bucket.names for bucket in plan.buckets] == [("a",), ("big",), ("count",), ("b", "c")]
    assert plan.buckets[3].dtypes == ("bfloat16", "bfloat16")
    assert plan.buckets[2].dtypes == ("int64",)
    assert plan.num_bytes == 8 + 200 + 16 + 16


def test_names_are_those_of_the_server_and_unique() -> None:
    weights = [("model.a", torch.zeros(1)), ("model.b", torch.zeros(1))]
    plan = plan_publish(weights, rename=lambda name: name.removeprefix("model."))
    assert [spec.name for spec in plan.specs] == ["a", "b"]
    with pytest.raises(ValueError, match="names of weights must be unique"):
        plan_publish(weights, rename=lambda _: "same")
    with pytest.raises(ValueError, match="bucket_bytes must be >= 1"):
        plan_publish(weights, bucket_bytes=0)


@given(
    st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=8), st.integers(1, 99)
)
def test_unflattening_gives_back_what_was_flattened(
    shapes: list[list[int]], bucket_bytes: int
) -> None:
    weights = {str(i): torch.randn(shape) for i, shape in enumerate(shapes)}
    plan = plan_publish(weights.items(), dtype=None, bucket_bytes=bucket_bytes)
    seen: dict[str, torch.Tensor] = {}
    for bucket in plan.buckets:
        flat = torch.cat([weights[name].reshape(-1) for name in bucket.names])
        assert flat.numel() == bucket.num_elements
        assert bucket.num_bytes <= bucket_bytes or len(bucket.specs) == 1
        seen |= bucket.unflatten(flat)
    assert list(seen) == list(weights)
    assert all(torch.equal(seen[name], weights[name]) for name in weights)


@pytest.mark.parametrize(
    ("is_overlapped", "gathered"), [(True, [[0, 1], [2], []]), (False, [[0], [1], [2]])]
)
def test_the_next_bucket_is_gathered_during_a_broadcast_where_that_is_wanted(
    is_overlapped: bool, gathered: list[list[int]]
) -> None:
    class Gathering(WeightSender):
        def gather(self, bucket: Bucket) -> torch.Tensor:
            seen.append(bucket.index)
            return super().gather(bucket)

    seen: list[int] = []
    weights = [(name, torch.zeros(4)) for name in "abc"]
    # Any rank but the first: it gathers alike, and is in no group.
    sender = Gathering(weights, is_source=False, bucket_bytes=8, is_overlapped=is_overlapped)
    for index, expected in enumerate(gathered):
        seen.clear()
        sender.broadcast_bucket(index)
        assert seen == expected


def test_checksums_tell_bytes_dtypes_and_shapes_apart() -> None:
    one = torch.tensor([1.0, -0.0])
    assert tensor_checksum(one) == tensor_checksum(one.clone())
    others = [torch.tensor([1.0, 0.0]), one.view(2, 1), one.to(torch.bfloat16)]
    assert len({tensor_checksum(one), *map(tensor_checksum, others)}) == 4


def test_errors_travel_between_processes() -> None:
    lost = pickle.loads(pickle.dumps(PublishError("gone", phase="pause", receivers=["a"])))
    assert (str(lost), lost.phase, lost.receivers) == ("gone", "pause", ("a",))
