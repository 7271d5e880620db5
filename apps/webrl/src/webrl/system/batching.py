"""From finished groups to training rows, and from rows to what the model eats.

Invariants:
    * one row per step: the step's prompt and its sampled tokens, which alone are trainable;
    * an episode's advantage is computed over all members of its group and goes to every step;
    * rows hold image keys; pixels are fetched once per micro-batch, where the model runs.

This is the one place that turns trajectories into tensors. Legend: B rows, T tokens, P patches,
D values per patch, N images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from awrl_ppo_loss import group_normalized_advantages, leave_one_out_advantages
from awrl_trainer import Batch, TrainRow
from torch import Tensor

from webrl.policy import ModelInputs, PolicyProcessor
from webrl.system.trajectory import Step, Trajectory

FetchImages = Callable[[Sequence[str]], Sequence[bytes | np.ndarray]]
"""Returns images by key, in key order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupMember:
    """One finished episode of a group."""

    episode_id: str
    """The episode."""
    group_id: str
    """Its group of siblings."""
    trajectory: Trajectory
    """What happened."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdvantageConfig:
    """How rewards become advantages."""

    norm: Literal["mean_std", "mean"] = "mean_std"
    """Group mean subtracted and divided by the group deviation, or leave-one-out mean only."""
    step_length: int | None = None
    """k: every advantage is divided by this constant; None leaves it."""


def zero_variance_reason(rewards: Sequence[float]) -> str | None:
    """Return why a group carries no gradient, or None when it does.

    Args:
        rewards: Rewards of the members that ended with one.
    """
    if not rewards:
        return "no member ended with a reward"
    return "zero_variance" if max(rewards) == min(rewards) else None


def group_advantages(members: Sequence[GroupMember], config: AdvantageConfig) -> dict[str, float]:
    """Return the advantage of each episode by episode id.

    Args:
        members: Episodes of any number of groups, in any order.
        config: How to normalise.
    """
    rewards = torch.tensor([m.trajectory.reward for m in members], dtype=torch.float64)
    ids = [m.group_id for m in members]
    normalise = (
        group_normalized_advantages if config.norm == "mean_std" else leave_one_out_advantages
    )
    values, _ = normalise(rewards, ids)
    scale = 1.0 / config.step_length if config.step_length else 1.0
    return {
        member.episode_id: float(value) * scale
        for member, value in zip(members, values, strict=True)
    }


def build_rows(
    members: Sequence[GroupMember],
    advantages: Mapping[str, float],
    processor: PolicyProcessor,
) -> list[TrainRow]:
    """Return one row per step of every member.

    Args:
        members: Finished episodes.
        advantages: Advantage by episode id.
        processor: Knows how many tokens an image takes.
    """
    return [
        _row(step, f"{member.episode_id}#{index}", member, advantages[member.episode_id], processor)
        for member in members
        for index, step in enumerate(member.trajectory.steps)
    ]


def _row(
    step: Step, row_id: str, member: GroupMember, advantage: float, processor: PolicyProcessor
) -> TrainRow:
    num_prompt, num_output = len(step.prompt_ids), len(step.output_ids)
    length = num_prompt + num_output
    loss_mask = np.zeros(length, dtype=np.bool_)
    loss_mask[num_prompt:] = True
    logprobs = np.zeros(length, dtype=np.float32)
    logprobs[num_prompt:] = step.behavior_logprobs
    versions = np.full(length, -1, dtype=np.int64)
    versions[num_prompt:] = step.versions
    num_image_tokens = sum(
        processor.num_image_tokens(image.height, image.width) for image in step.images
    )
    return TrainRow(
        input_ids=np.asarray([*step.prompt_ids, *step.output_ids], dtype=np.int64),
        loss_mask=loss_mask,
        behavior_logprobs=logprobs,
        advantages=advantage,
        versions=versions,
        image_keys=tuple(image.key for image in step.images),
        row_id=row_id,
        group_id=member.group_id,
        num_model_tokens=length - len(step.images) + num_image_tokens,
    )


class Collator:
    """Turns rows into a padded `Batch`; the trainer calls it once per micro-batch."""

    def __init__(self, processor: PolicyProcessor, fetch: FetchImages, *, pad_id: int) -> None:
        """Prepare a collator.

        Args:
            processor: Expands placeholders and builds patches and positions.
            fetch: Returns images by key, in key order.
            pad_id: Token id that fills short rows; it is masked from attention.
        """
        self._processor = processor
        self._fetch = fetch
        self._pad_id = pad_id

    def __call__(self, rows: Sequence[TrainRow]) -> Batch:
        """Return the model inputs of a micro-batch, pixels included."""
        keys = list(dict.fromkeys(key for row in rows for key in row.image_keys))
        images = dict(zip(keys, self._fetch(keys), strict=True)) if keys else {}
        inputs = [
            self._processor.model_inputs(
                row.input_ids.tolist(), [images[key] for key in row.image_keys]
            )
            for row in rows
        ]
        width = max(len(one.input_ids) for one in inputs)
        positions = [
            expanded_positions(row, one) + index * width
            for index, (row, one) in enumerate(zip(rows, inputs, strict=True))
        ]
        return Batch(
            kwargs=pad_inputs(inputs, width, self._pad_id), token_positions=torch.cat(positions)
        )


def expanded_positions(row: TrainRow, inputs: ModelInputs) -> Tensor:
    """Return where the row's trainable tokens lie once image placeholders are expanded.

    Args:
        row: The row, one placeholder per image.
        inputs: Its model inputs.

    Returns:
        Positions, int64 `[number of trainable tokens]`.
    """
    is_text = inputs.mm_token_type_ids == 0
    text_positions = torch.nonzero(is_text).reshape(-1)
    if bool(is_text.all()):
        text_rank = np.arange(len(row.input_ids))
    else:
        image_id = int(inputs.input_ids[~is_text][0])
        text_rank = np.cumsum(row.input_ids != image_id) - 1
    return text_positions[torch.from_numpy(text_rank[row.loss_mask])]


def pad_inputs(inputs: Sequence[ModelInputs], width: int, pad_id: int) -> dict[str, Tensor]:
    """Return the rows' inputs padded on the right to `[B, width]`.

    The attention mask is always given: without it a causal mask may be built from the jumps in
    the image positions as if rows were packed.

    Args:
        inputs: One per row.
        width: Longest row.
        pad_id: Fills `input_ids`.
    """
    num_rows = len(inputs)
    input_ids = torch.full((num_rows, width), pad_id, dtype=torch.int64)
    types = torch.zeros((num_rows, width), dtype=torch.int64)
    mask = torch.zeros((num_rows, width), dtype=torch.int64)
    position_ids = torch.zeros((3, num_rows, width), dtype=torch.int64)
    for index, one in enumerate(inputs):
        length = len(one.input_ids)
        input_ids[index, :length] = one.input_ids
        types[index, :length] = one.mm_token_type_ids
        mask[index, :length] = 1
        position_ids[:, index, :length] = one.position_ids
    kwargs = {
        "input_ids": input_ids,
        "attention_mask": mask,
        "position_ids": position_ids,
        "mm_token_type_ids": types,
    }
    pixels = [one.pixel_values for one in inputs if one.pixel_values is not None]
    grids = [one.image_grid_thw for one in inputs if one.image_grid_thw is not None]
    if pixels:
        kwargs["pixel_values"] = torch.cat(pixels)
        kwargs["image_grid_thw"] = torch.cat(grids)
    return kwargs
