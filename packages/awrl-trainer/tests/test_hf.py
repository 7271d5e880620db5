"""A real Qwen3-VL of a few thousand parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from awrl_trainer import (
    ActorConfig,
    Batch,
    CheckpointError,
    FSDPActor,
    LossConfig,
    OptimizerConfig,
    SnapshotWriter,
    TrainRow,
    collate_model_inputs,
)
from safetensors.torch import load_file, save_file

transformers = pytest.importorskip("transformers")

IMAGE, START, END = 60, 61, 62
Layout = Literal["padded", "packed", "shared_prefix"]


@dataclass(frozen=True)
class Inputs:
    input_ids: torch.Tensor
    mm_token_type_ids: torch.Tensor
    position_ids: torch.Tensor
    pixel_values: torch.Tensor | None
    image_grid_thw: torch.Tensor | None


def tiny_config() -> Any:
    return transformers.Qwen3VLConfig(
        text_config={
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "intermediate_size": 32,
            "vocab_size": 64,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [4, 2, 2],
                "mrope_interleaved": True,
            },
            "max_position_embeddings": 128,
        },
        vision_config={
            "hidden_size": 16,
            "depth": 2,
            "num_heads": 2,
            "intermediate_size": 32,
            "patch_size": 4,
            "spatial_merge_size": 1,
            "temporal_patch_size": 1,
            "out_hidden_size": 32,
            "deepstack_visual_indexes": [0],
            "num_position_embeddings": 16,
        },
        image_token_id=IMAGE,
        video_token_id=63,
        vision_start_token_id=START,
        vision_end_token_id=END,
        tie_word_embeddings=True,
    )


def tiny_model(seed: int = 0, *, is_packed: bool = False) -> Any:
    from awrl_trainer.hf import use_packed_attention

    torch.manual_seed(seed)
    config = use_packed_attention(tiny_config()) if is_packed else tiny_config()
    return transformers.Qwen3VLForConditionalGeneration(config).float()


def inputs_of(row: TrainRow) -> Inputs:
    """Expand each placeholder to an image of 2 x 3 patches, made from the row's keys."""
    ids: list[int] = []
    positions: list[tuple[int, ...]] = []
    place = 0
    for token in row.input_ids.tolist():
        if token == IMAGE:
            ids += [IMAGE] * 6
            positions += [(place, place + i // 3, place + i % 3) for i in range(6)]
            place += 3
        else:
            ids.append(token)
            positions.append((place,) * 3)
            place += 1
    expanded = torch.tensor(ids)
    pixels = [
        torch.randn(6, 48, generator=torch.Generator().manual_seed(int(key)))
        for key in row.image_keys
    ]
    return Inputs(
        input_ids=expanded,
        mm_token_type_ids=(expanded == IMAGE).long(),
        position_ids=torch.tensor(positions).T.contiguous(),
        pixel_values=torch.cat(pixels) if pixels else None,
        image_grid_thw=torch.tensor([[1, 2, 3]] * len(pixels)) if pixels else None,
    )


def make_rows() -> list[TrainRow]:
    """Two groups of siblings with an image, one with two images, one of text."""
    rng = np.random.default_rng(0)
    rows: list[TrainRow] = []
    for group, num_images in enumerate((1, 1, 2, 0)):
        images = np.tile([START, IMAGE, END], num_images)
        prompt = np.concatenate([images, rng.integers(0, 60, 3 + group)])
        for _ in range(3):
            length = int(rng.integers(1, 4))
            ids = np.concatenate([prompt, rng.integers(0, 60, length)]).astype(np.int64)
            rows.append(
                TrainRow(
                    input_ids=ids,
                    loss_mask=np.arange(len(ids)) >= len(prompt),
                    behavior_logprobs=np.full(len(ids), -4.0, dtype=np.float32),
                    advantages=float(rng.normal()),
                    image_keys=tuple(str(10 * group + i) for i in range(num_images)),
                    prefix_id=str(group),
                    num_model_tokens=len(ids) + 5 * num_images,
                )
            )
    return rows


def collate_as(layout: Layout) -> Any:
    def collate(rows: Sequence[TrainRow]) -> Batch:
        return collate_model_inputs(rows, [inputs_of(row) for row in rows], layout=layout)

    return collate


def actor_of(model: Any, layout: Layout = "padded", **config: Any) -> FSDPActor:
    return FSDPActor(
        model,
        ActorConfig(
            optimizer=OptimizerConfig(kind="sgd", lr=0.1),
            loss=LossConfig(masked_token_ids=(IMAGE, 63)),
            publish_dtype="float32",
            **config,
        ),
        collate=collate_as(layout),
    )


def weights_of(actor: FSDPActor) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in actor.sender.named_full_tensors()}


@pytest.mark.parametrize(
    ("layout", "is_packed"),
    [
        ("padded", False),
        ("packed", False),
        ("shared_prefix", False),
        ("packed", True),
        ("padded", True),
    ],
)
def test_logprobs_of_images_and_text_are_the_same_alone_and_in_every_layout(
    layout: Layout, is_packed: bool
) -> None:
    """`is_packed` takes the attention that ends at each row, under all layouts."""
    rows = make_rows()
    alone = [actor_of(tiny_model()).logprobs([row])[0] for row in rows[::5]]
    together = actor_of(tiny_model(is_packed=is_packed), layout).logprobs(rows)
    for mine, theirs in zip(alone, together[::5], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-6)


@pytest.mark.parametrize("layout", ["packed", "shared_prefix"])
def test_gradients_are_the_same_in_every_layout(layout: Layout) -> None:
    padded = actor_of(tiny_model(), token_budget=30)
    other = actor_of(tiny_model(is_packed=layout == "packed"), layout)
    for actor in (padded, other):
        actor.update(make_rows())
    mine, theirs = weights_of(padded), weights_of(other)
    assert max(float((mine[name] - theirs[name]).abs().max()) for name in mine) < 2e-6


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_activation_checkpointing_changes_nothing_but_memory(share: float) -> None:
    plain, saving = actor_of(tiny_model()), actor_of(tiny_model(), checkpointed_block_share=share)
    for actor in (plain, saving):
        actor.update(make_rows())
    mine, theirs = weights_of(plain), weights_of(saving)
    for name, value in mine.items():
        torch.testing.assert_close(theirs[name], value, rtol=0, atol=1e-7)


def test_compiled_blocks_are_the_repeated_ones_and_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[Any] = []

    def compile_eagerly(forward: Any) -> Any:
        compiled.append(forward)
        return torch_compile(forward, backend="eager")

    torch_compile = torch.compile
    monkeypatch.setattr(torch, "compile", compile_eagerly)
    plain, fast = actor_of(tiny_model()), actor_of(tiny_model(), is_compiled=True)
    assert len(compiled) == 4, "two of the text model, two of the vision tower"
    for mine, theirs in zip(plain.logprobs(make_rows()), fast.logprobs(make_rows()), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-6)


def test_chunked_head_changes_nothing_but_memory() -> None:
    plain, chunked = actor_of(tiny_model()), actor_of(tiny_model(), num_head_tokens=3)
    for actor in (plain, chunked):
        actor.update(make_rows())
    mine, theirs = weights_of(plain), weights_of(chunked)
    for name, value in mine.items():
        torch.testing.assert_close(theirs[name], value, rtol=0, atol=1e-7)


def test_a_frozen_vision_tower_keeps_its_bytes() -> None:
    actor = actor_of(tiny_model(), frozen_modules=("model.visual",))
    before = weights_of(actor)
    actor.update(make_rows())
    after = weights_of(actor)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert not [name for name in changed if name.startswith("model.visual")]


def test_an_unknown_frozen_module_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"frozen_modules must be prefixes.*'vision'"):
        actor_of(tiny_model(), frozen_modules=("vision",))


def test_a_snapshot_is_a_checkpoint_and_loads_without_memory(tmp_path: Path) -> None:
    from awrl_trainer.hf import load_actor

    base = tmp_path / "base"
    tiny_model().save_pretrained(base)
    actor = actor_of(tiny_model())
    actor.update(make_rows())
    path = actor.write_snapshot(SnapshotWriter(tmp_path / "snapshots", base=base))
    assert path is not None
    again = transformers.AutoModelForImageTextToText.from_pretrained(path)
    named = dict(again.named_parameters())
    for name, value in weights_of(actor).items():
        assert torch.equal(named[name], value), name
    assert again.lm_head.weight is again.model.language_model.embed_tokens.weight
    loaded = load_actor(path, actor.config, collate=collate_as("padded"), version=1)
    for mine, theirs in zip(actor.logprobs(make_rows()), loaded.logprobs(make_rows()), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_checkpoint_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    from awrl_trainer.hf import load_actor

    with pytest.raises(CheckpointError, match=r"path must be a directory with a config\.json"):
        load_actor(
            tmp_path,
            ActorConfig(optimizer=OptimizerConfig(lr=0.1)),
            collate=collate_as("padded"),
        )


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", "{", "must have a config.json that transformers .* reads, got OSError"),
        ("config.json", '{"model_type": "qwen9"}', "reads, got ValueError: .*qwen9"),
        ("model.safetensors", "", "must have a model.safetensors that .* got SafetensorError"),
        ("model.safetensors.index.json", "{}", "must have a model.safetensors.index.json that"),
        (
            "model.safetensors.index.json",
            '{"weight_map": {"model.visual.patch_embed.proj.weight": "1.safetensors"}}',
            "must have a 1.safetensors that .* got FileNotFoundError|must hold every weight",
        ),
    ],
)
def test_a_damaged_checkpoint_is_named(
    file: str, content: str, message: str, tmp_path: Path
) -> None:
    from awrl_trainer.hf import load_actor

    tiny_model().save_pretrained(tmp_path)
    (tmp_path / file).write_text(content)
    config = ActorConfig(optimizer=OptimizerConfig(lr=0.1))
    with pytest.raises(CheckpointError, match=message):
        load_actor(tmp_path, config, collate=collate_as("padded"))


def test_weights_of_another_shape_than_the_config_are_named(tmp_path: Path) -> None:
    from awrl_trainer.hf import load_actor

    tiny_model().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = next(name for name in weights if name.endswith("q_proj.weight"))
    # One row would be broadcast by a copy.
    save_file({**weights, name: weights[name][:1]}, tmp_path / "model.safetensors")
    config = ActorConfig(optimizer=OptimizerConfig(lr=0.1))
    with pytest.raises(CheckpointError, match=rf"{name}' must have shape .*, got \(1, "):
        load_actor(tmp_path, config, collate=collate_as("padded"))
