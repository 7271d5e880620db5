"""Groups become rows: advantages over all members, images beside their text, nothing lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image
from webrl.policy import InitPolicyConfig, PolicyProcessor, WarmupConfig, init_policy
from webrl.rollout.batch_source import verdict_on
from webrl.rollout.trajectory import ImageRef, Step, Trajectory
from webrl.training.rows import (
    AdvantageConfig,
    Collator,
    GroupMember,
    build_rows,
    group_advantages,
)


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> PolicyProcessor:
    folder = tmp_path_factory.mktemp("policy")
    init_policy(folder, InitPolicyConfig(warmup=WarmupConfig(num_updates=0)))
    return PolicyProcessor.from_pretrained(folder)


def make_step(processor: PolicyProcessor, key: str, *, version: int = 4) -> Step:
    ids = processor.encode("left_click(")
    return Step(
        prompt_ids=processor.build_prompt("Click it.", [], 1),
        output_ids=ids,
        behavior_logprobs=[-0.5] * len(ids),
        versions=[version] * len(ids),
        images=[ImageRef(key=key, height=224, width=160)],
        reply="left_click(",
        action="left_click(",
        is_valid=False,
        events=[],
        generate_s=0.0,
        environment_s=0.0,
    )


def make_member(
    processor: PolicyProcessor, group: str, member: int, reward: float, keys: list[str]
) -> GroupMember:
    return GroupMember(
        episode_id=f"{group}/{member}",
        group_id=group,
        trajectory=Trajectory(
            task="t",
            seed=1,
            goal="Click it.",
            outcome="success" if reward else "failure",
            ending="task",
            reward=reward,
            raw_reward=reward,
            steps=[make_step(processor, key) for key in keys],
            reset_s=0.0,
        ),
    )


def test_a_step_that_is_not_to_be_trained_on_gives_no_row(processor: PolicyProcessor) -> None:
    member = make_member(processor, "g", 0, 1.0, ["a", "b"])
    cut = msgspec.structs.replace(member.trajectory.steps[0], is_trainable=False)
    steps = [cut, member.trajectory.steps[1]]
    changed = msgspec.structs.replace(member.trajectory, steps=steps)
    rows = build_rows([replace(member, trajectory=changed)], {"g/0": 1.0}, processor)
    assert [row.row_id for row in rows["g/0"]] == ["g/0#1"]


def test_groups_meet_by_id_whatever_their_order_and_size(processor: PolicyProcessor) -> None:
    rewards = [("a", 0, 1.0), ("b", 0, 0.0), ("a", 1, 0.0), ("b", 1, 0.0), ("b", 2, 1.0)]
    members = [make_member(processor, g, m, r, ["k"]) for g, m, r in rewards]
    advantages = group_advantages(members, AdvantageConfig())
    assert advantages["a/0"] == pytest.approx(1.0)
    assert advantages["a/1"] == pytest.approx(-1.0)
    assert advantages["b/2"] == pytest.approx(2**0.5, rel=1e-6)
    assert advantages["b/0"] == pytest.approx(-(0.5**0.5), rel=1e-6)


def test_a_group_of_one_gets_no_advantage(processor: PolicyProcessor) -> None:
    assert group_advantages([make_member(processor, "a", 0, 1.0, ["k"])], AdvantageConfig()) == {
        "a/0": 0.0
    }


def test_only_groups_of_unequal_rewards_carry_a_gradient() -> None:
    assert verdict_on([1.0, 1.0]) == "all succeeded"
    assert verdict_on([0.0, 0.0]) == "all failed"
    assert verdict_on([1.0, 0.0]) == "useful"


def test_each_step_is_a_row_whose_sampled_tokens_alone_are_trainable(
    processor: PolicyProcessor,
) -> None:
    member = make_member(processor, "a", 0, 1.0, ["k0", "k1"])
    rows = build_rows([member], {"a/0": 0.7}, processor)["a/0"]
    assert [row.row_id for row in rows] == ["a/0#0", "a/0#1"]
    assert [row.image_keys for row in rows] == [("k0",), ("k1",)]
    row, step = rows[0], member.trajectory.steps[0]
    assert row.advantages == pytest.approx(0.7)
    assert row.loss_mask.sum() == len(step.output_ids)
    assert row.input_ids[row.loss_mask].tolist() == step.output_ids
    assert row.versions is not None
    assert set(row.versions[row.loss_mask].tolist()) == {4}
    assert row.num_model_tokens == len(row.input_ids) - 1 + processor.num_image_tokens(224, 160)


def test_each_text_keeps_its_own_image_through_the_collator(
    processor: PolicyProcessor, tmp_path: Path
) -> None:
    shades = {"a": 40, "b": 200}
    images: dict[str, bytes] = {}
    for key, shade in shades.items():
        file = tmp_path / f"{key}.png"
        Image.new("RGB", (160, 224), (shade, shade, shade)).save(file)
        images[key] = file.read_bytes()
    members = [make_member(processor, g, m, float(m), [g]) for g in "ab" for m in (0, 1, 2)]
    by_episode = build_rows(members, {m.episode_id: 1.0 for m in members}, processor)
    rows = [row for own in by_episode.values() for row in own]
    order = [5, 0, 3, 1, 4, 2]
    shuffled = [rows[i] for i in order]
    asked: list[list[str]] = []

    def fetch(keys: list[str]) -> list[bytes]:
        asked.append(list(keys))
        return [images[key] for key in keys]

    collator = Collator(processor, fetch)  # pyright: ignore[reportArgumentType]
    together = collator(shuffled)
    assert asked == [["b", "a"]]
    ids = together.kwargs["input_ids"].reshape(-1)[together.token_positions]
    wanted = np.concatenate([row.input_ids[row.loss_mask] for row in shuffled])
    assert ids.tolist() == wanted.tolist()
    # Siblings share a prefix, so each picture is computed once, in the order of first use.
    alone = {key: collator([rows[i]]).kwargs["pixel_values"] for key, i in (("a", 0), ("b", 3))}
    assert torch.equal(together.kwargs["pixel_values"], torch.cat([alone["b"], alone["a"]]))
