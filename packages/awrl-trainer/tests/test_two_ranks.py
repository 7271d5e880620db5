"""What two gloo ranks do equals what one process does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.distributed

OnTwoRanks = Callable[[str], list[Any]]
InOneProcess = Callable[[str], Any]


def assert_equal_updates(one: Any, two: list[Any]) -> None:
    metrics, weights = one
    for their_metrics, their_weights in two:
        for mine, theirs in zip(metrics, their_metrics, strict=True):
            assert mine.keys() == theirs.keys()
            for name, value in mine.items():
                if not name.startswith("time/"):
                    assert theirs[name] == pytest.approx(value, rel=1e-6, abs=1e-6), name
        for name, value in weights.items():
            torch.testing.assert_close(their_weights[name], value, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["three_sgd_steps", "mini_batches_by_epochs", "few_rows"])
def test_loss_gradients_and_weights_equal_one_process(
    name: str, on_two_ranks: OnTwoRanks, in_one_process: InOneProcess
) -> None:
    """Fewer rows than ranks among them."""
    assert_equal_updates(in_one_process(name), on_two_ranks(name))


def test_later_steps_of_an_update_move_away_from_the_proximal_policy(
    on_two_ranks: OnTwoRanks,
) -> None:
    metrics = on_two_ranks("mini_batches_by_epochs")[0][0]
    assert all(each["optimizer/num_steps"] == 4 for each in metrics)
    assert all(each["update_ratio/max"] > 1.001 for each in metrics)
    assert metrics[2]["clip/fraction"] > 0
    assert metrics[2]["proximal/loglinear_abs_error_mean"] > 0
    assert metrics[0]["staleness_ratio/capped_fraction"] > 0


def test_tokens_weigh_the_same_on_every_rank(
    on_two_ranks: OnTwoRanks, in_one_process: InOneProcess
) -> None:
    two = on_two_ranks("unequal_token_counts")
    assert two[0][0][0]["loss/value"] == pytest.approx(0.02, abs=1e-6)
    assert_equal_updates(in_one_process("unequal_token_counts"), two)


def test_mixed_images_neither_hang_nor_change_gradients(
    on_two_ranks: OnTwoRanks, in_one_process: InOneProcess
) -> None:
    assert_equal_updates(in_one_process("mixed_images"), on_two_ranks("mixed_images"))


def test_norm_is_global_and_a_nan_on_one_rank_skips_on_all(on_two_ranks: OnTwoRanks) -> None:
    for clipped, skipped, num_steps, _ in on_two_ranks("global_norm_and_skip"):
        result, weights = clipped
        assert result.grad_norm == pytest.approx(5.0)
        torch.testing.assert_close(weights, torch.tensor([[-0.6, 0.0, 0.0, -0.8]]))
        result, after = skipped
        assert result.is_skipped
        assert torch.equal(after, weights)
        assert num_steps == 1


def test_master_weights_keep_small_steps(on_two_ranks: OnTwoRanks) -> None:
    for dtypes, weights in on_two_ranks("bfloat16_compute"):
        assert dtypes == {"torch.float32"}
        for value in weights.values():
            torch.testing.assert_close(value, torch.full_like(value, 0.9), rtol=0, atol=1e-4)


def test_tied_weights_stay_tied_and_are_sent_once(on_two_ranks: OnTwoRanks) -> None:
    for names, embedding, head in on_two_ranks("tied_weights"):
        assert torch.equal(embedding, head)
        assert names.count("embed.weight") == 1
        assert "lm_head.weight" not in names


def test_a_model_built_without_memory_trains_like_another(on_two_ranks: OnTwoRanks) -> None:
    for num_real, weights, eager in on_two_ranks("meta_init"):
        assert num_real == 0
        assert torch.equal(weights["model.embed.weight"], weights["model.lm_head.weight"])
        for name, value in eager.items():
            assert torch.equal(weights[name], value), name


def test_ranks_with_different_rows_fail_together(on_two_ranks: OnTwoRanks) -> None:
    for message in on_two_ranks("different_rows"):
        assert "rows must be the same on every rank" in message


def test_what_one_rank_finds_wrong_is_the_same_error_on_every_rank_at_once(
    on_two_ranks: OnTwoRanks,
) -> None:
    (first, weights), (second, their_weights) = on_two_ranks("one_rank_fails")
    for mine, theirs in zip(first, second, strict=True):
        assert mine == theirs
        name, error, (versions, steps) = mine
        assert error.startswith("BatchError: "), name
        assert versions == (steps > 0), name
    assert {steps for _, _, (_, steps) in first} == {0, 1}, "some fail after an optimizer step"
    for name, value in weights.items():
        assert torch.equal(value, their_weights[name])


def test_a_file_operation_that_fails_on_one_rank_is_the_same_error_on_every_rank(
    on_two_ranks: OnTwoRanks,
) -> None:
    """One that is an error on no rank only left something behind."""
    (first, weights), (second, their_weights) = on_two_ranks("disk_of_one_rank_fails")
    for mine, theirs in zip(first, second, strict=True):
        assert mine == theirs
        name, error, _, kept, _ = mine
        assert not error or error.startswith("CheckpointError: "), name
        assert kept is not None, name
    failed = {name[:6] for name, error, *_ in first if error}
    assert failed == {"save 0", "save 1", "load 0", "load 1"}
    for name, value in weights.items():
        assert torch.equal(value, their_weights[name])


def test_a_collate_that_fails_on_one_rank_fails_on_all_and_training_goes_on(
    on_two_ranks: OnTwoRanks,
) -> None:
    (message, version, weights), (their_message, _, their_weights) = on_two_ranks(
        "collate_fails_on_one_rank"
    )
    assert message.startswith("BatchError")
    assert "image-7" in their_message
    assert version == 1
    for name, value in weights.items():
        assert torch.equal(value, their_weights[name])


def test_resume_restores_the_version_and_repeats_the_next_step_bit_for_bit(
    on_two_ranks: OnTwoRanks,
) -> None:
    for version, extra, (metrics, resumed), (weights, resumed_weights) in on_two_ranks("resume"):
        assert version == 2
        assert extra == {"cursor": 11}
        for name, value in metrics.items():
            if not name.startswith("time/"):
                assert resumed[name] == value, name
        for name, value in weights.items():
            assert torch.equal(value, resumed_weights[name]), name


@pytest.mark.requirement("host-moments")
def test_optimizer_state_on_the_host_changes_no_bit_and_loads_both_ways(
    on_two_ranks: OnTwoRanks,
) -> None:
    for metrics, fingerprints, weights in on_two_ranks("offloaded_state"):
        kept, offloaded = (
            [{k: v for k, v in step.items() if not k.startswith("time/")} for step in steps]
            for steps in metrics
        )
        assert kept == offloaded
        assert len(kept) == 4
        assert fingerprints[0] == fingerprints[1]
        assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_a_checkpoint_that_fails_on_one_rank_fails_alike_on_all(on_two_ranks: OnTwoRanks) -> None:
    mine, theirs = on_two_ranks("checkpoints_that_fail_on_one_rank")
    assert mine == theirs
    errors, extra, left = mine
    assert len(errors) == 9
    assert [entry for entry in errors if not entry[1].startswith("CheckpointError: ")] == []
    assert extra == {"cursor": 1}
    assert left == ["version_0"]


def test_a_checkpoint_of_two_ranks_loads_on_one(
    on_two_ranks: OnTwoRanks, in_one_process: InOneProcess
) -> None:
    version, weights = in_one_process("zz_resume_on_other_world")
    assert version == 2
    for their_version, their_weights in on_two_ranks("zz_resume_on_other_world"):
        assert their_version == 2
        for name, value in weights.items():
            assert torch.equal(value, their_weights[name])


def test_saving_works_while_rank_0_alone_is_joined_to_the_servers(on_two_ranks: OnTwoRanks) -> None:
    both = on_two_ranks("saved_while_joined_to_servers")
    assert both[0] == both[1]
    assert both[0] == [["policies/version_0", "policies/version_1", "state/version_1"]] * 2


@pytest.mark.requirement("xccl-broadcast")
def test_gathered_buckets_and_snapshots_hold_the_trainers_bytes_in_one_order(
    on_two_ranks: OnTwoRanks,
) -> None:
    results = on_two_ranks("published")
    assert results[0][0] == results[1][0]
    plan, flats, weights, path, checksums = results[0]
    assert len(plan.buckets) > 1
    for bucket, flat, theirs in zip(plan.buckets, flats, results[1][1], strict=True):
        assert flat.dtype == torch.bfloat16
        assert torch.equal(flat, theirs)
        for name, value in bucket.unflatten(flat).items():
            assert torch.equal(value, weights[name])
    on_disk = load_file(Path(path) / "model.safetensors")
    assert on_disk.keys() == {spec.name for spec in plan.specs}
    for name, value in on_disk.items():
        assert torch.equal(value, weights[name])
    assert checksums == results[1][4]
    assert results[1][3] is None


def test_programs_have_a_test_each(programs: ModuleType) -> None:
    source = Path(__file__).read_text()
    assert [name for name in programs.PROGRAMS if f'"{name}"' not in source] == []
