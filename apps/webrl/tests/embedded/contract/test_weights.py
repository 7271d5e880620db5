"""Contract of weight updates: groups, broadcasts, disk, versions, and every way to be wrong."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
import torch
from awrl_rollout import (
    GenerateRequest,
    GenerateResult,
    InterruptibleGenerator,
    ServerRefusedError,
    SGLangClient,
    WeightBucket,
)
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from webrl.embedded.testing import (
    RankZero,
    ServerUnderTest,
    as_base64,
    page_png,
    reference_logprobs,
)
from webrl.embedded.weights import tensor_checksum
from webrl.policy import PolicyProcessor

GROUP_NUMBERS = itertools.count()
SEEN_PAGE = page_png(31)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(180):
            await scenario()

    asyncio.run(bounded())


def bucket_of(tensors: dict[str, torch.Tensor], *, is_flattened: bool) -> WeightBucket:
    return WeightBucket(
        names=list(tensors),
        dtypes=[str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()],
        shapes=[list(tensor.shape) for tensor in tensors.values()],
        is_flattened=is_flattened,
    )


def named_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters())


def perturb(model: torch.nn.Module, scale: float = 0.05, only: str = "") -> dict[str, torch.Tensor]:
    """Change the model's weights in place; return the changed ones by name."""
    generator = torch.Generator().manual_seed(5)
    changed: dict[str, torch.Tensor] = {}
    for name, weight in model.named_parameters():
        if only in name:
            noise = torch.randn(weight.shape, generator=generator) * scale
            weight.add_(noise.to(weight.dtype))
            changed[name] = weight
    return changed


@pytest.fixture
def request_of_seen_page(processor: PolicyProcessor) -> GenerateRequest:
    return GenerateRequest(
        input_ids=processor.build_prompt("click", [], 1),
        images=[as_base64(SEEN_PAGE)],
        max_new_tokens=6,
        masked_token_ids=(*processor.masked_token_ids, processor.eos_token_id),
    )


@pytest.fixture(autouse=True)
def _first_weights_again(server: ServerUnderTest) -> Iterator[None]:
    yield

    async def restore() -> None:
        async with SGLangClient(server.url) as client:
            await client.continue_generation()
            await client.update_weights_from_disk(str(server.model_path), weight_version=0)

    asyncio.run(restore())


async def join(client: SGLangClient, rank_zero: RankZero) -> None:
    """Open the group from both sides at once."""
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(rank_zero.open))
        group.create_task(
            client.init_weights_update_group(
                master_address="127.0.0.1",
                master_port=rank_zero.port,
                rank_offset=1,
                world_size=rank_zero.world_size,
                group_name=rank_zero.group_name,
                backend="gloo",
            )
        )


async def publish(
    client: SGLangClient,
    rank_zero: RankZero,
    tensors: dict[str, torch.Tensor],
    *,
    is_flattened: bool,
    weight_version: int | None,
) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(rank_zero.send, tensors, is_flattened=is_flattened))
        group.create_task(
            client.update_weights_from_distributed(
                bucket_of(tensors, is_flattened=is_flattened),
                group_name=rank_zero.group_name,
                weight_version=weight_version,
            )
        )


@pytest.fixture
def rank_zero(unused_port: Callable[[], int]) -> Iterator[RankZero]:
    name = f"contract-{next(GROUP_NUMBERS)}"
    with RankZero(port=unused_port(), group_name=name) as sender:
        yield sender


def check_parity(
    server: ServerUnderTest,
    processor: PolicyProcessor,
    model: torch.nn.Module,
    request: GenerateRequest,
    result: GenerateResult,
) -> None:
    expected = reference_logprobs(
        model,
        processor,
        prompt_ids=request.input_ids,
        images=[SEEN_PAGE],
        output_ids=result.output_ids,
        masked_token_ids=request.masked_token_ids,
    )
    assert result.logprobs == pytest.approx(expected, abs=server.tolerance)


@pytest.mark.distributed
@pytest.mark.parametrize("is_flattened", [True, False])
@pytest.mark.parametrize("only", ["", "visual", "language_model"])
def test_a_broadcast_changes_what_is_sampled_a_seen_image_included(
    server: ServerUnderTest,
    processor: PolicyProcessor,
    reference: torch.nn.Module,
    rank_zero: RankZero,
    request_of_seen_page: GenerateRequest,
    is_flattened: bool,
    only: str,
) -> None:
    async def scenario() -> None:
        async with SGLangClient(server.url) as client:
            before = await client.generate(request_of_seen_page)
            check_parity(server, processor, reference, request_of_seen_page, before)
            changed = perturb(reference, only=only)
            await join(client, rank_zero)
            await client.pause_generation()
            half = len(changed) // 2
            for index, part in enumerate((list(changed)[:half], list(changed)[half:])):
                await publish(
                    client,
                    rank_zero,
                    {name: changed[name] for name in part},
                    is_flattened=is_flattened,
                    weight_version=(None, 41)[index],
                )
            await client.continue_generation()
            after = await client.generate(request_of_seen_page)
            assert set(after.versions) == {41}
            check_parity(server, processor, reference, request_of_seen_page, after)
            assert await client.weight_version() == 41
            await client.destroy_weights_update_group(rank_zero.group_name)

    run(scenario)


@pytest.mark.distributed
def test_published_weights_are_bit_equal(
    server: ServerUnderTest, reference: torch.nn.Module, rank_zero: RankZero
) -> None:
    if not server.is_embedded:
        pytest.skip("SGLang fuses weights and has no checksum without CUDA")

    async def scenario() -> None:
        async with SGLangClient(server.url) as client:
            before = await client.weights_checksums()
            changed = perturb(reference)
            await join(client, rank_zero)
            await publish(client, rank_zero, changed, is_flattened=True, weight_version=1)
            after = await client.weights_checksums()
            own = {name: tensor_checksum(tensor) for name, tensor in changed.items()}
            assert {name: after.by_name[name] for name in own if name in after.by_name} == own
            assert set(own) == set(after.by_name)
            assert before.total != after.total
            await client.destroy_weights_update_group(rank_zero.group_name)

    run(scenario)


@pytest.mark.distributed
def test_tokens_around_an_update_carry_the_version_that_made_them(
    server: ServerUnderTest,
    processor: PolicyProcessor,
    reference: torch.nn.Module,
    rank_zero: RankZero,
    request_of_seen_page: GenerateRequest,
) -> None:
    async def scenario() -> None:
        long = GenerateRequest(
            input_ids=request_of_seen_page.input_ids,
            images=request_of_seen_page.images,
            max_new_tokens=300,
            masked_token_ids=request_of_seen_page.masked_token_ids,
        )
        async with SGLangClient(server.url) as client, asyncio.TaskGroup() as group:
            await client.update_weight_version(6)
            await join(client, rank_zero)
            task = group.create_task(InterruptibleGenerator(client).generate(long))
            await asyncio.sleep(0.5 if not server.is_embedded else 0.05)
            await client.pause_generation()
            changed = perturb(reference, only="language_model.layers.1")
            await publish(client, rank_zero, changed, is_flattened=True, weight_version=7)
            await client.continue_generation()
            result = await task
        assert list(result.versions) == sorted(result.versions)
        assert set(result.versions) <= {6, 7}
        assert result.versions[-1] == 7
        expected = reference_logprobs(
            reference,
            processor,
            prompt_ids=long.input_ids,
            images=[SEEN_PAGE],
            output_ids=result.output_ids,
            masked_token_ids=long.masked_token_ids,
        )
        first = result.versions.index(7)
        assert result.logprobs[first:] == pytest.approx(expected[first:], abs=server.tolerance)

    run(scenario)


@pytest.mark.distributed
def test_a_group_can_be_left_and_opened_again(
    server: ServerUnderTest, reference: torch.nn.Module, unused_port: Callable[[], int]
) -> None:
    async def scenario() -> None:
        async with SGLangClient(server.url) as client:
            for version in (1, 2):
                name = f"contract-{next(GROUP_NUMBERS)}"
                with RankZero(port=unused_port(), group_name=name) as sender:
                    await join(client, sender)
                    await publish(
                        client,
                        sender,
                        perturb(reference, only="norm"),
                        is_flattened=True,
                        weight_version=version,
                    )
                    await client.destroy_weights_update_group(name)
                assert await client.weight_version() == version

    run(scenario)


def test_a_group_that_does_not_exist_is_refused(server: ServerUnderTest) -> None:
    async def scenario() -> None:
        async with SGLangClient(server.url) as client:
            with pytest.raises(ServerRefusedError):
                await client.destroy_weights_update_group("nobody")

    run(scenario)


@pytest.mark.distributed
def test_a_name_that_is_joined_already_is_refused(
    server: ServerUnderTest, rank_zero: RankZero, unused_port: Callable[[], int]
) -> None:
    if not server.is_embedded:
        pytest.skip("SGLang waits for rank 0 before it looks at the name")

    async def scenario() -> None:
        async with SGLangClient(server.url) as client:
            await join(client, rank_zero)
            with pytest.raises(ServerRefusedError, match="which was joined already"):
                await client.init_weights_update_group(
                    master_address="127.0.0.1",
                    master_port=unused_port(),
                    rank_offset=1,
                    world_size=2,
                    group_name=rank_zero.group_name,
                    backend="gloo",
                )
            await client.destroy_weights_update_group(rank_zero.group_name)

    run(scenario)


WRONG: dict[str, Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]] = {
    "unknown name": lambda weights: {"model.nothing.weight": next(iter(weights.values()))},
    "wrong shape": lambda weights: {
        name: weight.reshape(-1)[:-1] for name, weight in list(weights.items())[:1]
    },
    "wrong dtype": lambda weights: {
        name: weight.double() for name, weight in list(weights.items())[:1]
    },
    "good and bad": lambda weights: {
        **{name: weight + 1 for name, weight in list(weights.items())[:3]},
        "model.nothing.weight": torch.zeros(2),
    },
}


@pytest.mark.distributed
@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("is_flattened", [True, False])
def test_br_49_a_broadcast_that_does_not_fit_is_refused_and_changes_nothing(
    server: ServerUnderTest,
    reference: torch.nn.Module,
    rank_zero: RankZero,
    kind: str,
    is_flattened: bool,
) -> None:
    if not server.is_embedded:
        pytest.skip("SGLang skips unknown names silently and applies the rest")

    async def scenario() -> None:
        async with SGLangClient(server.url) as client:
            before = await client.weights_checksums()
            await join(client, rank_zero)
            wrong = WRONG[kind](named_weights(reference))
            with pytest.raises(ExceptionGroup) as caught:
                await publish(client, rank_zero, wrong, is_flattened=is_flattened, weight_version=9)
            (error,) = caught.value.exceptions
            assert isinstance(error, ServerRefusedError)
            assert next(iter(wrong)) in str(error) or "model.nothing.weight" in str(error)
            assert await client.weights_checksums() == before
            assert await client.weight_version() != 9
            good = perturb(reference, only="norm")
            await publish(client, rank_zero, good, is_flattened=is_flattened, weight_version=10)
            assert await client.weight_version() == 10
            await client.destroy_weights_update_group(rank_zero.group_name)

    run(scenario)


def test_a_checkpoint_on_disk_is_loaded(
    server: ServerUnderTest,
    processor: PolicyProcessor,
    reference: torch.nn.Module,
    request_of_seen_page: GenerateRequest,
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        folder = tmp_path / "next"
        shutil.copytree(server.model_path, folder)
        async with SGLangClient(server.url) as client:
            await client.generate(request_of_seen_page)
            perturb(reference)
            cast("PreTrainedModel", reference).save_pretrained(folder)
            await client.update_weights_from_disk(str(folder), weight_version=3)
            result = await client.generate(request_of_seen_page)
            assert set(result.versions) == {3}
            check_parity(server, processor, reference, request_of_seen_page, result)

    run(scenario)


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
    request_of_seen_page: GenerateRequest,
    tmp_path: Path,
    damage: Callable[[Path], None],
) -> None:
    if not server.is_embedded:
        pytest.skip("SGLang loads what it finds")

    async def scenario() -> None:
        folder = tmp_path / "damaged"
        shutil.copytree(server.model_path, folder)
        damage(folder)
        async with SGLangClient(server.url) as client:
            before = await client.weights_checksums()
            with pytest.raises(ServerRefusedError):
                await client.update_weights_from_disk(str(folder), weight_version=8)
            assert await client.weights_checksums() == before
            result = await client.generate(request_of_seen_page)
            assert set(result.versions) != {8}

    run(scenario)


def test_br_15_a_new_label_aborts_nothing(
    server: ServerUnderTest, request_of_seen_page: GenerateRequest
) -> None:
    async def scenario() -> None:
        long = GenerateRequest(
            input_ids=request_of_seen_page.input_ids,
            images=request_of_seen_page.images,
            max_new_tokens=60,
            masked_token_ids=request_of_seen_page.masked_token_ids,
        )
        async with SGLangClient(server.url) as client, asyncio.TaskGroup() as group:
            tasks = [group.create_task(client.generate(long)) for _ in range(16)]
            await asyncio.sleep(0)
            await client.update_weight_version(12)
            results = [await task for task in tasks]
        assert all(result.stop_reason == "length" for result in results)

    run(scenario)
