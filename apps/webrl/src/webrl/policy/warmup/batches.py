"""Synthetic pages and their actions as one padded batch.

Invariant: rows are padded on the right; padding has attention 0 and carries no loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch.nn.utils.rnn import pad_sequence

from webrl.actions import parse_action
from webrl.agent import Decision, Scene, Turn, make_agent
from webrl.config import AgentSection
from webrl.policy.processor import PolicyProcessor
from webrl.policy.warmup.pages import SyntheticPage

# B pages, T tokens, P patches of all pages, D values per patch.


@dataclass(frozen=True, slots=True)
class SupervisedBatch:
    """Inputs of one supervised forward."""

    input_ids: torch.Tensor
    """`[B, T]` int64."""
    attention_mask: torch.Tensor
    """`[B, T]` int64."""
    mm_token_type_ids: torch.Tensor
    """`[B, T]` int64."""
    position_ids: torch.Tensor
    """`[3, B, T]` int64."""
    pixel_values: torch.Tensor
    """`[P, D]` float32."""
    image_grid_thw: torch.Tensor
    """`[B, 3]` int64."""
    action_mask: torch.Tensor
    """`[B, T]` bool: true for tokens of the action, its end token included."""

    def on(self, device: torch.device) -> SupervisedBatch:
        """Return the batch on a device."""
        return SupervisedBatch(
            **{field.name: getattr(self, field.name).to(device) for field in fields(self)}
        )


def supervised_batch(
    processor: PolicyProcessor, pages: Sequence[SyntheticPage], actions: Sequence[str]
) -> SupervisedBatch:
    """Return prompts followed by the given actions, padded to one length."""
    agent = make_agent(AgentSection(), processor)
    ids, kinds, positions, masks, patches, grids = [], [], [], [], [], []
    for page, action in zip(pages, actions, strict=True):
        before = (parse_action(text) for text in page.previous_actions)
        scene = Scene(
            goal=page.goal,
            url="",
            sizes=(page.pixels.shape[:2],),
            turns=tuple(Turn(decision=Decision(action=done)) for done in before),
        )
        reply = agent.write(Decision(action=parse_action(action)))
        prompt, answer = agent.prompt(scene).ids, [*processor.encode(reply), processor.eos_token_id]
        inputs = processor.model_inputs([*prompt, *answer], [page.pixels])
        if inputs.pixel_values is None or inputs.image_grid_thw is None:
            raise AssertionError
        length = inputs.input_ids.shape[0]
        ids.append(inputs.input_ids)
        kinds.append(inputs.mm_token_type_ids)
        positions.append(inputs.position_ids.T)
        masks.append(torch.arange(length) >= length - len(answer))
        patches.append(inputs.pixel_values)
        grids.append(inputs.image_grid_thw)
    attention = [torch.ones_like(row) for row in ids]
    return SupervisedBatch(
        input_ids=pad_sequence(ids, batch_first=True),
        attention_mask=pad_sequence(attention, batch_first=True),
        mm_token_type_ids=pad_sequence(kinds, batch_first=True),
        position_ids=pad_sequence(positions, batch_first=True).permute(2, 0, 1),
        pixel_values=torch.cat(patches),
        image_grid_thw=torch.cat(grids),
        action_mask=pad_sequence(masks, batch_first=True),
    )
