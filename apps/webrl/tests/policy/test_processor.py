from __future__ import annotations

import io
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from webrl.errors import PolicyError
from webrl.policy import (
    ActionGrid,
    PolicyProcessor,
    click_text,
    image_tokens,
    image_within,
    load_policy,
    size_within,
)


def picture(height: int, width: int, seed: int, kind: str = "PNG") -> bytes:
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, size=(height // 4, width // 4, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height))
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def test_prompt_holds_one_placeholder_per_image_and_ends_where_the_action_begins(
    processor: PolicyProcessor, checkpoint: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    prompt = processor.build_prompt("Click button ONE.", ["left_click(25, 54)"], 2)
    text = tokenizer.decode(prompt)
    assert text == (
        "<|im_start|>user\nGoal: Click button ONE.\nPrevious actions:\nleft_click(25, 54)\n"
        "<|vision_start|><|image_pad|><|vision_end|><|vision_start|><|image_pad|><|vision_end|>"
        "<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompt.count(tokenizer.convert_tokens_to_ids("<|image_pad|>")) == 2


def test_a_prompt_that_was_handed_out_can_be_changed_without_harm(
    processor: PolicyProcessor,
) -> None:
    processor.build_prompt("Click.", [], 1).clear()
    assert processor.build_prompt("Click.", [], 1)


def test_the_laptop_screenshot_becomes_35_tokens(processor: PolicyProcessor) -> None:
    assert processor.num_image_tokens(224, 160) == 35
    prompt = processor.build_prompt("Click button ONE.", [], 1)
    assert len(processor.expand(prompt, [(224, 160)])) == len(prompt) + 34


@pytest.mark.parametrize(
    ("height", "width", "kind"),
    [(224, 160, "PNG"), (224, 160, "JPEG"), (210, 332, "PNG"), (112, 80, "PNG"), (40, 64, "PNG")],
)
def test_patches_equal_the_hugging_face_processor_bit_for_bit(
    processor: PolicyProcessor, checkpoint: Path, height: int, width: int, kind: str
) -> None:
    data = picture(height, width, seed=height, kind=kind)
    reference = Qwen2VLImageProcessorPil.from_pretrained(checkpoint)(
        Image.open(io.BytesIO(data)).convert("RGB"), return_tensors="pt"
    )
    prompt = processor.build_prompt("Click.", [], 1)
    inputs = processor.model_inputs(prompt, [data])
    assert inputs.pixel_values is not None
    assert inputs.image_grid_thw is not None
    assert torch.equal(inputs.pixel_values, reference["pixel_values"])
    assert torch.equal(inputs.image_grid_thw, reference["image_grid_thw"])
    assert inputs.pixel_values.dtype == torch.float32


def test_a_decoded_array_gives_the_patches_of_the_encoded_image(
    processor: PolicyProcessor,
) -> None:
    data = picture(224, 160, seed=3)
    prompt = processor.build_prompt("Click.", [], 1)
    encoded = processor.model_inputs(prompt, [data]).pixel_values
    array = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    decoded = processor.model_inputs(prompt, [array]).pixel_values
    assert encoded is not None
    assert decoded is not None
    assert torch.equal(encoded, decoded)


def test_white_is_zero(processor: PolicyProcessor) -> None:
    page = np.full((224, 160, 3), 255, dtype=np.uint8)
    values = processor.model_inputs(processor.build_prompt("Click.", [], 1), [page]).pixel_values
    assert values is not None
    assert values.abs().max().item() == 0.0


def test_positions_equal_get_rope_index(processor: PolicyProcessor, checkpoint: Path) -> None:
    model = load_policy(checkpoint)
    sizes = [(224, 160), (112, 200), (64, 64)]
    for count in range(4):
        images: list[bytes | np.ndarray] = [picture(h, w, seed=h) for h, w in sizes[:count]]
        prompt = processor.build_prompt("Click button ONE.", ["wait()"], count)
        inputs = processor.model_inputs([*prompt, processor.eos_token_id], images)
        expected, _ = model.model.get_rope_index(
            cast("torch.LongTensor", inputs.input_ids[None]),
            mm_token_type_ids=cast("torch.IntTensor", inputs.mm_token_type_ids[None]),
            image_grid_thw=cast("torch.LongTensor | None", inputs.image_grid_thw),
        )
        assert torch.equal(inputs.position_ids, expected[:, 0])
        assert inputs.position_ids.dtype == torch.int64


def test_expansion_in_model_inputs_equals_expand(processor: PolicyProcessor) -> None:
    prompt = processor.build_prompt("Click.", [], 2)
    inputs = processor.model_inputs(prompt, [picture(224, 160, 1), picture(96, 64, 2)])
    assert inputs.input_ids.tolist() == processor.expand(prompt, [(224, 160), (96, 64)])
    assert int(inputs.mm_token_type_ids.sum()) == 35 + processor.num_image_tokens(96, 64)


def test_images_and_placeholders_must_agree(processor: PolicyProcessor) -> None:
    prompt = processor.build_prompt("Click.", [], 1)
    with pytest.raises(PolicyError, match=r"one placeholder per image \(2\), got 1"):
        processor.model_inputs(prompt, [picture(224, 160, 1)] * 2)


def test_only_actions_can_be_sampled(processor: PolicyProcessor, checkpoint: Path) -> None:
    model = load_policy(checkpoint)
    masked = set(processor.masked_token_ids)
    allowed = [i for i in range(model.config.get_text_config().vocab_size) if i not in masked]
    grid = ActionGrid()
    pieces = {processor.decode([i]) for i in allowed}
    assert processor.eos_token_id in allowed
    assert {f"{x}, " for x in grid.x_values()} <= pieces
    assert {f"{y})" for y in grid.y_values()} <= pieces
    assert "left_click(" in pieces
    assert len(allowed) == 8 + grid.num_x + grid.num_y + 1
    assert {model.config.image_token_id, model.config.video_token_id} <= masked
    assert model.config.get_text_config().vocab_size - 1 in masked


def test_a_click_is_three_tokens_that_decode_to_its_text(processor: PolicyProcessor) -> None:
    grid = ActionGrid()
    for x in grid.x_values():
        for y in grid.y_values():
            text = click_text(x, y)
            ids = processor.encode(text)
            assert len(ids) == 3
            assert processor.decode([*ids, processor.eos_token_id]) == text


def test_an_image_is_made_no_larger_than_asked_and_keeps_shape_and_format() -> None:
    page = Image.effect_noise((640, 360), 80).convert("RGB")
    for kind in ("JPEG", "PNG"):
        encoded = io.BytesIO()
        page.save(encoded, format=kind)
        data = encoded.getvalue()
        assert image_within(data, 640 * 360, jpeg_quality=80) is data
        with Image.open(io.BytesIO(image_within(data, 10_000, jpeg_quality=80))) as smaller:
            assert smaller.format == kind
            assert (smaller.height, smaller.width) == size_within(360, 640, 10_000)
            assert 9_000 < smaller.width * smaller.height <= 10_000
    assert size_within(360, 640, None) == (360, 640)


def test_what_an_image_costs_is_what_the_processor_says(
    checkpoint: Path, processor: PolicyProcessor
) -> None:
    for height, width in ((224, 160), (720, 1280), (30, 400)):
        assert image_tokens(checkpoint, height, width) == processor.num_image_tokens(height, width)
