from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    Qwen3VLForConditionalGeneration,
)
from transformers.utils import logging as transformers_logging
from webrl.errors import PolicyError
from webrl.policy import InitPolicyConfig, PolicyProcessor, WarmupConfig, init_policy, load_policy


def test_the_auto_classes_load_it(checkpoint: Path) -> None:
    model = AutoModelForImageTextToText.from_pretrained(checkpoint)
    assert isinstance(model, Qwen3VLForConditionalGeneration)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert tokenizer.eos_token_id == model.generation_config.eos_token_id
    assert len(tokenizer) < model.config.get_text_config().vocab_size


def test_the_auto_processor_loads_it_and_builds_the_same_inputs(
    checkpoint: Path, processor: PolicyProcessor
) -> None:
    pytest.importorskip("torchvision", reason="Hugging Face's video processor needs torchvision")
    full = AutoProcessor.from_pretrained(checkpoint)
    page = torch.full((224, 160, 3), 128, dtype=torch.uint8).numpy()
    text = AutoTokenizer.from_pretrained(checkpoint).decode(processor.build_prompt("Go.", [], 1))
    batch = full(text=[text], images=[page], return_tensors="pt")
    inputs = processor.model_inputs(processor.build_prompt("Go.", [], 1), [page])
    assert torch.equal(batch["input_ids"][0], inputs.input_ids)
    torch.testing.assert_close(batch["pixel_values"], inputs.pixel_values)


def test_hugging_face_generation_samples_actions_only(
    checkpoint: Path, processor: PolicyProcessor
) -> None:
    model: Any = load_policy(checkpoint)
    page = torch.full((224, 160, 3), 255, dtype=torch.uint8).numpy()
    inputs = processor.model_inputs(processor.build_prompt("Click.", [], 1), [page])
    torch.manual_seed(0)
    out = model.generate(
        input_ids=inputs.input_ids[None],
        attention_mask=torch.ones_like(inputs.input_ids)[None],
        mm_token_type_ids=inputs.mm_token_type_ids[None],
        pixel_values=inputs.pixel_values,
        image_grid_thw=inputs.image_grid_thw,
        max_new_tokens=24,
    )
    new = set(out[0, inputs.input_ids.shape[0] :].tolist())
    assert not new & set(processor.masked_token_ids)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    weights = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        warmup = WarmupConfig(num_updates=2, batch_size=6)
        init_policy(tmp_path / name, InitPolicyConfig(seed=seed, warmup=warmup))
        weights.append(load_file(tmp_path / name / "model.safetensors"))
    first, second, third = weights
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not all(torch.equal(first[key], third[key]) for key in first)


def test_init_policy_leaves_the_global_random_state_alone(tmp_path: Path) -> None:
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    init_policy(tmp_path, InitPolicyConfig(warmup=WarmupConfig(num_updates=0)))
    assert torch.equal(torch.rand(3), expected)


def test_init_policy_draws_no_progress_bar(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    init_policy(tmp_path, InitPolicyConfig(warmup=WarmupConfig(num_updates=0)))
    out, err = capfd.readouterr()
    assert "shards" not in out + err
    assert transformers_logging.is_progress_bar_enabled()


def test_a_directory_without_a_policy_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"path must be a checkpoint directory"):
        load_policy(tmp_path)
    with pytest.raises(PolicyError, match=r"path must be a checkpoint directory"):
        PolicyProcessor.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "file",
    [
        "config.json",
        "generation_config.json",
        "preprocessor_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
    ],
)
@pytest.mark.parametrize("content", ["", "[]"])
def test_a_damaged_policy_is_named(
    file: str, content: str, checkpoint: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "policy")
    (folder / file).write_text(content)
    read = load_policy if file == "model.safetensors" else PolicyProcessor.from_pretrained
    with pytest.raises(PolicyError, match=r"policy .* must be whole and one that transformers"):
        read(folder)


def test_a_policy_that_lacks_a_weight_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "policy")
    weights = load_file(folder / "model.safetensors")
    name = max(weights)
    del weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PolicyError, match=f"must hold every weight of its model, got no '{name}'"):
        load_policy(folder)


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(PolicyError, match="must be writable, got"):
        init_policy(tmp_path / "file", InitPolicyConfig(warmup=WarmupConfig(num_updates=0)))


def test_bfloat16_weights_load_as_asked(checkpoint: Path) -> None:
    model = load_policy(checkpoint, torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert not model.training
