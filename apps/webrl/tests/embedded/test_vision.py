from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from webrl.embedded.config import EmbeddedServerConfig
from webrl.embedded.parity import page_png
from webrl.embedded.runner import ModelRunner, load_runner
from webrl.embedded.vision import VisionEncoder
from webrl.policy import PolicyProcessor, load_policy

SIZES = [(160, 224), (96, 64), (320, 128)]


@pytest.fixture(scope="module")
def runner(policy_path: Path) -> ModelRunner:
    return load_runner(EmbeddedServerConfig(model_path=str(policy_path)))


def pages() -> list[bytes]:
    return [page_png(index, width=w, height=h) for index, (w, h) in enumerate(SIZES)]


def test_features_are_those_of_the_hf_tower(policy_path: Path, runner: ModelRunner) -> None:
    processor = PolicyProcessor.from_pretrained(policy_path)
    model = cast("Any", load_policy(policy_path)).model
    prompt_ids = processor.build_prompt("click", [], len(SIZES))
    inputs = processor.model_inputs(prompt_ids, pages())
    with torch.inference_mode():
        expected = model.get_image_features(inputs.pixel_values, inputs.image_grid_thw)
        encoder = VisionEncoder(model, cache_bytes=2**24)
        found = encoder.features([runner.prepare(prompt_ids, pages())])
    assert found is not None
    assert torch.allclose(found.embeddings, torch.cat(list(expected.pooler_output)), atol=1e-5)
    assert len(found.deepstack) == len(expected.deepstack_features)
    for layer, wanted in zip(found.deepstack, expected.deepstack_features, strict=True):
        assert torch.allclose(layer, wanted, atol=1e-5)


def test_an_image_is_encoded_once_until_the_weights_change(
    policy_path: Path, runner: ModelRunner
) -> None:
    body = cast("Any", load_policy(policy_path)).model
    encoder = VisionEncoder(body, cache_bytes=2**24)
    num_images: list[int] = []
    body.visual.register_forward_pre_hook(
        lambda _, __, kwargs: num_images.append(len(kwargs["grid_thw"])), with_kwargs=True
    )
    one, two, three = (
        runner.prepare(runner.processor.build_prompt("click", [], len(wanted)), wanted)
        for wanted in (pages()[:1], pages()[:2], pages())
    )
    with torch.inference_mode():
        encoder.features([one, one])
        encoder.features([one, two])
        first = encoder.features([three])
        assert num_images == [1, 1, 1]
        encoder.clear()
        second = encoder.features([three])
    assert num_images == [1, 1, 1, 3]
    assert first is not None
    assert second is not None
    assert torch.allclose(first.embeddings, second.embeddings, atol=1e-6)


def test_a_prompt_without_images_has_no_features(runner: ModelRunner) -> None:
    encoder = VisionEncoder(cast("Any", runner.model).model, cache_bytes=0)
    assert encoder.features([runner.prepare([30, 31], [])]) is None


def test_the_weights_keep_their_names(policy_path: Path, runner: ModelRunner) -> None:
    assert set(runner.model.state_dict()) == set(load_policy(policy_path).state_dict())
