"""Contract of weight updates: groups, broadcasts, versions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

import pytest
import torch
from awrl_rollout import (
    InterruptibleGenerator,
    SGLangClient,
    SGLangClientConfig,
)
from serving import ServerUnderTest, perturb, run_bounded, until_running
from webrl.embedded.parity import largest_difference, page_png, page_request
from webrl.embedded.rank_zero import RankZero, bucket_of, join, publish
from webrl.embedded.weights import tensor_checksum
from webrl.policy import PolicyProcessor

pytestmark = pytest.mark.usefixtures("first_weights_again")
SEEN_PAGE = page_png(31)


@pytest.mark.distributed
@pytest.mark.parametrize("is_flattened", [True, False])
@pytest.mark.parametrize("only", ["", "visual", "language_model"])
def test_a_broadcast_changes_what_is_sampled_a_seen_image_included(
    server: ServerUnderTest,
    processor: PolicyProcessor,
    reference: torch.nn.Module,
    rank_zero: RankZero,
    is_flattened: bool,
    only: str,
) -> None:
    request = page_request(processor, [SEEN_PAGE])

    async def scenario() -> None:
        async with SGLangClient(server.url) as client:
            before = await client.generate(request)
            assert (
                largest_difference(reference, processor, request, [SEEN_PAGE], before)
                < server.tolerance
            )
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
            after = await client.generate(request)
            assert set(after.versions) == {41}
            assert (
                largest_difference(reference, processor, request, [SEEN_PAGE], after)
                < server.tolerance
            )
            assert await client.weights.version() == 41
            await client.weights.leave(rank_zero.group_name)

    run_bounded(scenario)


@pytest.mark.requirement("xccl-broadcast")
@pytest.mark.distributed
def test_published_weights_are_bit_equal(
    server: ServerUnderTest, reference: torch.nn.Module, rank_zero: RankZero
) -> None:
    if not server.is_embedded:
        pytest.skip("SGLang fuses weights and has no checksum without CUDA")

    async def scenario() -> None:
        async with SGLangClient(server.url) as client:
            before = await client.weights.checksums()
            changed = perturb(reference)
            await join(client, rank_zero)
            await publish(client, rank_zero, changed, is_flattened=True, weight_version=1)
            after = await client.weights.checksums()
            own = {name: tensor_checksum(tensor) for name, tensor in changed.items()}
            assert {name: after.by_name[name] for name in own if name in after.by_name} == own
            assert set(own) == set(after.by_name)
            assert before.total != after.total
            await client.weights.leave(rank_zero.group_name)

    run_bounded(scenario)


@pytest.mark.requirement("in-place-update-any-time")
@pytest.mark.distributed
def test_tokens_around_an_update_carry_the_version_that_made_them(
    server: ServerUnderTest,
    processor: PolicyProcessor,
    reference: torch.nn.Module,
    rank_zero: RankZero,
) -> None:
    async def scenario() -> None:
        long = page_request(processor, [SEEN_PAGE], max_new_tokens=300)
        async with SGLangClient(server.url) as client, asyncio.TaskGroup() as group:
            await client.weights.set_version(6)
            await join(client, rank_zero)
            task = group.create_task(InterruptibleGenerator(client).generate(long))
            await until_running(client, server, 1)
            await client.pause_generation()
            changed = perturb(reference, only="language_model.layers.1")
            await publish(client, rank_zero, changed, is_flattened=True, weight_version=7)
            await client.continue_generation()
            result = await task
        assert list(result.versions) == sorted(result.versions)
        assert set(result.versions) <= {6, 7}
        assert result.versions[-1] == 7
        first = result.versions.index(7)
        difference = largest_difference(
            reference, processor, long, [SEEN_PAGE], result, first=first
        )
        assert difference < server.tolerance

    run_bounded(scenario)


@pytest.mark.distributed
def test_only_a_flush_frees_sglang_of_prefixes_of_the_weights_before(
    server: ServerUnderTest,
    processor: PolicyProcessor,
    reference: torch.nn.Module,
    rank_zero: RankZero,
) -> None:
    """The one difference in what an update means: the embedded server never keeps a prefix."""
    request = page_request(processor, [SEEN_PAGE])

    async def scenario() -> None:
        async with SGLangClient(server.url) as client:
            await client.generate(request)
            await join(client, rank_zero)
            changed = perturb(reference, only="language_model")
            await publish(
                client,
                rank_zero,
                changed,
                is_flattened=True,
                weight_version=2,
                flush_cache=False,
            )
            kept = await client.generate(request)
            await client.flush_cache()
            fresh = await client.generate(request)
            await client.weights.leave(rank_zero.group_name)
        differences = [
            largest_difference(reference, processor, request, [SEEN_PAGE], result)
            for result in (kept, fresh)
        ]
        assert (differences[0] < server.tolerance) == server.is_embedded
        assert differences[1] < server.tolerance

    run_bounded(scenario)


@pytest.mark.distributed
def test_a_group_can_be_left_and_opened_again(
    server: ServerUnderTest, reference: torch.nn.Module, unused_port: Callable[[], int]
) -> None:
    async def scenario() -> None:
        async with SGLangClient(server.url) as client:
            for version in (1, 2):
                name = f"again-{version}"
                with RankZero(port=unused_port(), group_name=name) as sender:
                    await join(client, sender)
                    await publish(
                        client,
                        sender,
                        perturb(reference, only="norm"),
                        is_flattened=True,
                        weight_version=version,
                    )
                    await client.weights.leave(name)
                assert await client.weights.version() == version

    run_bounded(scenario)


@pytest.mark.distributed
@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_an_update_under_requests_that_are_kept_stamps_each_token_with_its_maker(
    server: ServerUnderTest,
    reference: torch.nn.Module,
    rank_zero: RankZero,
    processor: PolicyProcessor,
    mode: Literal["abort", "in_place", "retract"],
) -> None:
    async def scenario() -> None:
        long = page_request(processor, [SEEN_PAGE], max_new_tokens=400)
        config = SGLangClientConfig(use_stream=True)
        async with (
            SGLangClient(server.url, config=config) as client,
            asyncio.TaskGroup() as group,
        ):
            await client.weights.set_version(20)
            await join(client, rank_zero)
            task = group.create_task(client.generate(long))
            await until_running(client, server, 1)
            await client.pause_generation(mode)
            await publish(
                client,
                rank_zero,
                perturb(reference, only="norm"),
                is_flattened=True,
                weight_version=21,
                flush_cache=False,
            )
            await client.continue_generation()
            result = await task
            await client.weights.leave(rank_zero.group_name)
        assert result.stop_reason == "length"
        assert len(result.output_ids) == 400
        assert list(result.versions) == sorted(result.versions)
        assert result.versions[-1] == 21
        assert set(result.versions) <= {20, 21}

    run_bounded(scenario)


@pytest.mark.distributed
def test_a_bucket_of_one_dtype_may_be_sent_in_that_dtype(
    server: ServerUnderTest,
    processor: PolicyProcessor,
    reference: torch.nn.Module,
    rank_zero: RankZero,
) -> None:
    request = page_request(processor, [SEEN_PAGE])

    async def scenario() -> None:
        changed = perturb(reference)
        async with SGLangClient(server.url) as client:
            await join(client, rank_zero)
            async with asyncio.TaskGroup() as group:
                group.create_task(
                    asyncio.to_thread(rank_zero.send, changed, is_flattened=True, as_bytes=False)
                )
                group.create_task(
                    client.weights.receive(
                        bucket_of(changed, is_flattened=True),
                        group_name=rank_zero.group_name,
                        flush_cache=True,
                    )
                )
            result = await client.generate(request)
            assert (
                largest_difference(reference, processor, request, [SEEN_PAGE], result)
                < server.tolerance
            )
            await client.weights.leave(rank_zero.group_name)

    run_bounded(scenario)


def test_a_new_label_aborts_nothing(server: ServerUnderTest, processor: PolicyProcessor) -> None:
    async def scenario() -> None:
        long = page_request(processor, [SEEN_PAGE], max_new_tokens=60)
        async with SGLangClient(server.url) as client, asyncio.TaskGroup() as group:
            tasks = [group.create_task(client.generate(long)) for _ in range(16)]
            await until_running(client, server, 16)
            await client.weights.set_version(12)
            results = [await task for task in tasks]
        assert all(result.stop_reason == "length" for result in results)

    run_bounded(scenario)
