"""Contract of generation: what every inference server must answer."""

from __future__ import annotations

import asyncio

import pytest
import torch
from awrl_rollout import (
    GenerateRequest,
    GenerateResult,
    ServerRefusedError,
    ServerUnavailableError,
    SGLangClient,
)
from serving import ServerUnderTest
from webrl.embedded.parity import as_base64, largest_difference, page_png, page_request
from webrl.policy import PolicyProcessor

pytestmark = pytest.mark.usefixtures("server_with_model")


def generate(url: str, *requests: GenerateRequest) -> list[GenerateResult]:
    async def run() -> list[GenerateResult]:
        async with SGLangClient(url) as client, asyncio.TaskGroup() as group:
            tasks = [group.create_task(client.generate(request)) for request in requests]
        return [task.result() for task in tasks]

    return asyncio.run(run())


@pytest.mark.parametrize("num_images", [0, 1, 3])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampled_logprobs_are_the_trainer_s(
    server: ServerUnderTest,
    processor: PolicyProcessor,
    reference: torch.nn.Module,
    num_images: int,
    temperature: float,
) -> None:
    images = [page_png(100 + index) for index in range(num_images)]
    request = page_request(processor, images, temperature=temperature, max_new_tokens=12)
    (result,) = generate(server.url, request)
    assert len(result.output_ids) == 12
    assert result.stop_reason == "length"
    assert largest_difference(reference, processor, request, images, result) < server.tolerance


def test_images_of_several_sizes_keep_their_place(
    server: ServerUnderTest, processor: PolicyProcessor, reference: torch.nn.Module
) -> None:
    images = [page_png(1), page_png(2, width=96, height=64), page_png(3, width=320, height=128)]
    request = page_request(processor, images)
    (result,) = generate(server.url, request)
    assert largest_difference(reference, processor, request, images, result) < server.tolerance


def test_a_batch_of_unlike_requests_gives_each_its_own_answer(
    server: ServerUnderTest, processor: PolicyProcessor, reference: torch.nn.Module
) -> None:
    cases = [
        (
            page_request(
                processor,
                [page_png(200 + index)] * (index % 3),
                temperature=(1.0, 0.5, 1.3)[index % 3],
                max_new_tokens=1 + index,
            ),
            [page_png(200 + index)] * (index % 3),
        )
        for index in range(12)
    ]
    results = generate(server.url, *(request for request, _ in cases))
    for (request, images), result in zip(cases, results, strict=True):
        assert len(result.output_ids) == request.max_new_tokens
        assert largest_difference(reference, processor, request, images, result) < server.tolerance


def test_siblings_of_one_prompt_draw_their_own_tokens(
    server: ServerUnderTest, processor: PolicyProcessor, reference: torch.nn.Module
) -> None:
    images = [page_png(7)]
    request = page_request(processor, images)
    results = generate(server.url, *[request] * 8)
    assert len({result.output_ids for result in results}) > 1
    for result in results:
        assert largest_difference(reference, processor, request, images, result) < server.tolerance


def test_greedy_takes_the_best_token_and_reports_temperature_one(
    server: ServerUnderTest, processor: PolicyProcessor, reference: torch.nn.Module
) -> None:
    images = [page_png(8)]
    request = page_request(processor, images, temperature=0.0)
    first, second = generate(server.url, request, request)
    assert first.output_ids == second.output_ids
    assert largest_difference(reference, processor, request, images, first) < server.tolerance
    inputs = processor.model_inputs(request.input_ids, images)
    logits = reference(
        input_ids=inputs.input_ids[None],
        position_ids=inputs.position_ids[:, None],
        pixel_values=inputs.pixel_values,
        image_grid_thw=inputs.image_grid_thw,
    ).logits[0, -1]
    logits[list(request.masked_token_ids)] = -torch.inf
    best = logits.float().topk(2).values
    if best[0] - best[1] > server.tolerance:
        assert first.output_ids[0] == int(logits.argmax())


def test_masked_ids_are_never_drawn(server: ServerUnderTest, processor: PolicyProcessor) -> None:
    allowed = sorted(set(range(20, 40)) - set(processor.masked_token_ids))[:5] or [20, 21]
    vocab_size = max(*processor.masked_token_ids, *allowed) + 1
    masked = tuple(set(range(vocab_size)) - set(allowed))
    request = page_request(processor, [], masked_token_ids=masked, max_new_tokens=40)
    (result,) = generate(server.url, request)
    assert set(result.output_ids) <= set(allowed)


def test_the_end_token_ends_the_answer_and_is_part_of_it(
    server: ServerUnderTest, processor: PolicyProcessor, reference: torch.nn.Module
) -> None:
    request = page_request(
        processor, [], max_new_tokens=2000, masked_token_ids=processor.masked_token_ids
    )
    (result,) = generate(server.url, request)
    assert result.stop_reason == "stop"
    assert result.output_ids[-1] == processor.eos_token_id
    assert processor.eos_token_id not in result.output_ids[:-1]
    assert largest_difference(reference, processor, request, [], result) < server.tolerance


def test_a_stop_token_of_the_request_ends_the_answer(
    server: ServerUnderTest, processor: PolicyProcessor
) -> None:
    request = page_request(processor, [], temperature=0.0, max_new_tokens=8)
    (free,) = generate(server.url, request)
    stop = free.output_ids[3]
    limited = page_request(processor, [], temperature=0.0, max_new_tokens=8, stop_token_ids=(stop,))
    (result,) = generate(server.url, limited)
    assert result.stop_reason == "stop"
    assert result.output_ids == free.output_ids[: free.output_ids.index(stop) + 1]


@pytest.mark.parametrize("budget", [1, 2, 5])
def test_the_budget_is_kept(
    server: ServerUnderTest, processor: PolicyProcessor, budget: int
) -> None:
    (result,) = generate(server.url, page_request(processor, [], max_new_tokens=budget))
    assert len(result.output_ids) == budget
    assert result.stop_reason == "length"


def test_nucleus_sampling_reports_the_full_distribution(
    server: ServerUnderTest, processor: PolicyProcessor, reference: torch.nn.Module
) -> None:
    request = page_request(processor, [], top_p=0.3, max_new_tokens=20)
    (result,) = generate(server.url, request)
    assert largest_difference(reference, processor, request, [], result) < server.tolerance


def test_an_input_beyond_the_context_is_refused(
    server: ServerUnderTest, processor: PolicyProcessor
) -> None:
    request = page_request(processor, [], input_ids=[20] * 300_000)
    with pytest.raises(ServerRefusedError, match=r"context length|longer than"):
        generate_one(server.url, request)


def generate_one(url: str, request: GenerateRequest) -> GenerateResult:
    async def run() -> GenerateResult:
        async with SGLangClient(url) as client:
            return await client.generate(request)

    return asyncio.run(run())


def test_an_image_that_is_none_is_refused_and_the_server_goes_on(
    server: ServerUnderTest, processor: PolicyProcessor
) -> None:
    good = page_request(processor, [page_png(1)])
    bad = page_request(processor, [page_png(1)], images=[as_base64(b"this is no image")])
    # SGLang answers 500 to a picture that can not be read, which a client takes for an outage.
    error = ServerRefusedError if server.is_embedded else ServerUnavailableError
    with pytest.raises(error):
        generate_one(server.url, bad)
    assert len(generate_one(server.url, good).output_ids) == 6


def test_more_images_than_placeholders_are_refused_and_sglang_looks_at_the_first_ones(
    server: ServerUnderTest, processor: PolicyProcessor, reference: torch.nn.Module
) -> None:
    pages = [page_png(1), page_png(2)]
    bad = page_request(processor, pages[:1], images=[as_base64(page) for page in pages])
    if server.is_embedded:
        with pytest.raises(ServerRefusedError):
            generate_one(server.url, bad)
        return
    result = generate_one(server.url, bad)
    assert largest_difference(reference, processor, bad, pages[:1], result) < server.tolerance
