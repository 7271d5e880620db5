"""From finished groups to training rows, and from rows to the inputs of the model.

Invariants:
    * one row per step: the step's prompt and its sampled tokens, which alone are trainable;
    * an episode's advantage is computed over all members of its group and goes to every step;
    * rows hold image keys; pixels are fetched once per micro-batch, where the model runs.

This is the one place that turns trajectories into tensors.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from awrl_ppo_loss import group_normalized_advantages
from awrl_rollout import RolloutBatch
from awrl_trainer import Batch, TrainRow, collate_model_inputs

from webrl.policy import PolicyProcessor
from webrl.rollout.trajectory import Step, Trajectory

logger = logging.getLogger(__name__)

RowLayout = Literal["shared_prefix", "packed", "padded"]

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


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedBatch:
    """What one update is computed from."""

    members: Sequence[GroupMember]
    """Every episode that ended well, those that are too far behind to train on included."""
    advantages: Mapping[str, float]
    """Advantage of each of them by episode id."""
    rows: Mapping[str, Sequence[TrainRow]]
    """Trainable rows by episode id; an episode without any is absent."""
    num_lost_rows: int
    """Rows that were dropped because a screenshot is gone."""


class Screenshots(Protocol):
    """What the row builder asks of the PixelStore."""

    async def missing_async(self, keys: Sequence[str]) -> Sequence[str]:
        """Return the keys that the store does not hold."""
        ...

    async def release_async(self, *holders: str) -> object:
        """Give up the leases of these episodes."""
        ...


class RowBuilder:
    """Prepares batches for training, and releases their screenshots afterwards.

    Args:
        screenshots: Where they are.
        processor: Counts image tokens.
    """

    def __init__(
        self, screenshots: Screenshots, processor: PolicyProcessor, config: AdvantageConfig
    ) -> None:
        self._screenshots = screenshots
        self._processor = processor
        self._config = config

    async def prepare(self, batch: RolloutBatch) -> PreparedBatch:
        """Return advantages of all members, and the rows whose screenshots are all there."""
        members = members_of(batch)
        advantages = group_advantages(members, self._config)
        expired = {episode_id for group in batch for episode_id in group.expired}
        trainable = [member for member in members if member.episode_id not in expired]
        rows = build_rows(trainable, advantages, self._processor)
        keys = {key: None for own in rows.values() for row in own for key in row.image_keys}
        missing = set(await self._screenshots.missing_async(list(keys)))
        kept = {
            episode_id: [row for row in own if not missing.intersection(row.image_keys)]
            for episode_id, own in rows.items()
        }
        num_lost = sum(len(own) - len(kept[episode_id]) for episode_id, own in rows.items())
        if missing:
            logger.warning("%d screenshots are gone; %d rows dropped", len(missing), num_lost)
        return PreparedBatch(
            members=members,
            advantages=advantages,
            rows={episode_id: own for episode_id, own in kept.items() if own},
            num_lost_rows=num_lost,
        )

    async def release(self, episode_ids: Sequence[str]) -> None:
        """Give up the screenshots of episodes that nobody needs any more."""
        await self._screenshots.release_async(*episode_ids)


def members_of(batch: RolloutBatch) -> list[GroupMember]:
    """Return every member of a batch that ended well, expired ones included."""
    members: list[GroupMember] = []
    for group in batch:
        for record in group.records:
            trajectory = record.payload
            assert isinstance(trajectory, Trajectory)
            members.append(
                GroupMember(
                    episode_id=record.episode_id,
                    group_id=record.group_id,
                    trajectory=trajectory,
                )
            )
    return members


def group_advantages(members: Sequence[GroupMember], config: AdvantageConfig) -> dict[str, float]:
    """Return the advantage of each episode by episode id.

    Args:
        members: Episodes of any number of groups, in any order.
    """
    advantages = group_normalized_advantages(
        [member.trajectory.reward for member in members],
        [member.group_id for member in members],
        norm=config.norm,
    )
    ids = [member.episode_id for member in members]
    return dict(zip(ids, advantages.tolist(), strict=True))


def build_rows(
    members: Sequence[GroupMember],
    advantages: Mapping[str, float],
    processor: PolicyProcessor,
) -> dict[str, list[TrainRow]]:
    """Return one row per trainable step of every member, by episode id.

    Args:
        members: Finished episodes.
        advantages: Advantage by episode id.
        processor: Knows how many tokens an image takes.
    """
    return {
        member.episode_id: [
            _row(
                step,
                f"{member.episode_id}#{index}",
                member,
                advantages[member.episode_id],
                processor,
            )
            for index, step in enumerate(member.trajectory.steps)
            if step.is_trainable
        ]
        for member in members
    }


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
        prefix_id=_prefix_id(step),
        num_model_tokens=length - len(step.images) + num_image_tokens,
    )


def _prefix_id(step: Step) -> str:
    """Return one name for equal prompts: same tokens, same screenshots."""
    digest = hashlib.blake2b(str(step.prompt_ids).encode(), digest_size=8).hexdigest()
    return "|".join([digest, *(image.key for image in step.images)])


class Collator:
    """Turns rows into a `Batch`; the trainer calls it once per micro-batch.

    Args:
        processor: Expands placeholders and builds patches and positions.
        fetch: Returns images by key, in key order.
        layout: How rows lie in a batch; see `collate_model_inputs`.
    """

    def __init__(
        self,
        processor: PolicyProcessor,
        fetch: FetchImages,
        layout: RowLayout = "shared_prefix",
    ) -> None:
        self._layout: RowLayout = layout
        self._processor = processor
        self._fetch = fetch

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
        return collate_model_inputs(
            rows, inputs, layout=self._layout, pad_token_id=self._processor.eos_token_id
        )
