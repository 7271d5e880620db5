"""Contract of weight updates from disk: whole checkpoints of the same model, or nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch
from awrl_rollout import (
    ServerRefusedError,
    SGLangClient,
)
from safetensors.torch import load_file, save_file
from serving import ServerUnderTest, perturb, run_bounded
from transformers import PreTrainedModel
from webrl.embedded.parity import largest_difference, page_png, page_request
from webrl.policy import PolicyProcessor

pytestmark = pytest.mark.usefixtures("first_weights_again")
SEEN_PAGE = page_png(31)


@pytest.mark.requirement("disk-hot-load")
def test_a_checkpoint_on_disk_is_loaded(
    server: ServerUnderTest,
    processor: PolicyProcessor,
    reference: torch.nn.Module,
    tmp_path: Path,
) -> None:
    request = page_request(processor, [SEEN_PAGE])

    async def scenario() -> None:
        folder = tmp_path / "next"
        shutil.copytree(server.model_path, folder)
        async with SGLangClient(server.url) as client:
            await client.generate(request)
            perturb(reference)
            cast("PreTrainedModel", reference).save_pretrained(folder)
            await client.weights.load(str(folder), weight_version=3, flush_cache=True)
            result = await client.generate(request)
            assert set(result.versions) == {3}
            assert (
                largest_difference(reference, processor, request, [SEEN_PAGE], result)
                < server.tolerance
            )

    run_bounded(scenario)


def damage_truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def damage_missing(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def damage_shard(folder: Path) -> None:
    index = {"weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def damage_architecture(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "qwen3"}))


def damage_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_ty')


def damage_shape(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = sorted(tensors)[0]
    save_file({**tensors, name: torch.zeros(3)}, folder / "model.safetensors")


@pytest.mark.requirement("disk-hot-load")
@pytest.mark.parametrize(
    "damage",
    [
        damage_truncated,
        damage_missing,
        damage_shard,
        damage_architecture,
        damage_config,
        damage_shape,
    ],
)
def test_a_checkpoint_that_is_not_whole_or_not_ours_is_refused_and_changes_nothing(
    server: ServerUnderTest,
    processor: PolicyProcessor,
    tmp_path: Path,
    damage: Callable[[Path], None],
) -> None:
    if not server.is_embedded:
        pytest.skip("SGLang loads what it finds, and ends at a file that is cut short")

    request = page_request(processor, [SEEN_PAGE])

    async def scenario() -> None:
        folder = tmp_path / "damaged"
        shutil.copytree(server.model_path, folder)
        damage(folder)
        async with SGLangClient(server.url) as client:
            before = await client.weights.checksums()
            with pytest.raises(ServerRefusedError):
                await client.weights.load(str(folder), weight_version=8)
            assert await client.weights.checksums() == before
            result = await client.generate(request)
            assert set(result.versions) != {8}

    run_bounded(scenario)
