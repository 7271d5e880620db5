from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from webrl.policy import (
    ActionGrid,
    InitPolicyConfig,
    PageFactory,
    PolicyProcessor,
    WarmupConfig,
    load_policy,
)
from webrl.policy.warmup import action_loss, supervised_batch, warm_up


def test_only_action_tokens_carry_loss(processor: PolicyProcessor) -> None:
    pages = PageFactory(ActionGrid(), ("section",), np.random.default_rng(1))
    drawn = [pages.draw() for _ in range(4)]
    batch = supervised_batch(processor, drawn, [page.solutions[0] for page in drawn])
    assert batch.action_mask.sum(dim=1).tolist() == [4, 4, 4, 4]
    lengths = batch.attention_mask.sum(dim=1)
    assert lengths.unique().numel() > 1
    for row, length, page in zip(range(4), lengths.tolist(), drawn, strict=True):
        ids = batch.input_ids[row][batch.action_mask[row]].tolist()
        assert processor.decode(ids) == page.solutions[0]
        assert ids[-1] == processor.eos_token_id
        assert bool(batch.action_mask[row, length - 1])


def test_padding_does_not_change_the_loss(processor: PolicyProcessor, checkpoint: Path) -> None:
    model = load_policy(checkpoint)
    pages = PageFactory(ActionGrid(), ("section",), np.random.default_rng(1))
    drawn = [pages.draw() for _ in range(4)]
    actions = [page.solutions[0] for page in drawn]
    with torch.no_grad():
        together = action_loss(model, supervised_batch(processor, drawn, actions), processor)
        alone = [
            action_loss(model, supervised_batch(processor, [page], [action]), processor)
            for page, action in zip(drawn, actions, strict=True)
        ]
    torch.testing.assert_close(together, torch.stack(alone).mean(), rtol=1e-4, atol=1e-4)


def test_the_loss_falls_below_that_of_a_blind_uniform_click(
    processor: PolicyProcessor, checkpoint: Path
) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = load_policy(checkpoint)
    warmup = WarmupConfig(num_updates=25, batch_size=16, page_kinds=("field",))
    report = warm_up(model, processor, InitPolicyConfig(warmup=warmup))
    grid = ActionGrid()
    assert report.num_pages == 400
    assert report.loss < (math.log(grid.num_x) + math.log(grid.num_y)) / 4
    assert not model.training


def test_no_updates_leave_the_weights_alone(processor: PolicyProcessor, checkpoint: Path) -> None:
    model = load_policy(checkpoint)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = warm_up(model, processor, InitPolicyConfig(warmup=WarmupConfig(num_updates=0)))
    assert math.isnan(report.loss)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
