"""Does a live server answer with the trainer's log-probs? Also for pages that it has seen before.

Invariants:

* The reference is the HF forward of the same checkpoint, in this process and in one piece: no cache,
  no batching, no code that it shares with the server but the processor.
* The server ends with the weights of `model_path`, whatever happens in between.

Meant for a server that nobody else uses meanwhile: the check publishes changed weights to find servers
that keep image features across an update.
"""

from __future__ import annotations

import asyncio
import base64
import io
import random
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from awrl_rollout import (
    GenerateRequest,
    GenerateResult,
    InterruptibleGenerator,
    SGLangClient,
    UnwrappedTaskGroup,
)
from PIL import Image, ImageDraw

from webrl.embedded.rank_zero import RankZero, join, publish
from webrl.policy import PolicyProcessor, load_policy

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_GROUP = "parity-check"

_NUM_TOKENS = 16
"""Tokens per answer: enough to see an error of one layer, few enough for a start-up check."""

_NUM_LONG_TOKENS = 96
"""Tokens of the answer that is cut and resubmitted."""

_NUM_CUTS = 2
"""Times that it is cut, unless it ends before."""

_BEFORE_CUT_S = 0.1
"""Long enough for a few tokens of any server."""

_NOISE = 0.05
"""Standard deviation of what is added to the vision weights; a stale feature then shows plainly."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParityCase:
    """Log-probs of one kind of request, compared."""

    name: str
    """What was asked."""
    num_tokens: int
    """Tokens compared."""
    max_difference: float
    """Largest absolute difference of a log-prob, in nats."""


async def check_parity(
    client: SGLangClient,
    model_path: str,
    *,
    dtype: torch.dtype = torch.float32,
    broadcast_port: int | None = None,
) -> list[ParityCase]:
    """Return how far the server's log-probs are from the HF forward, by kind of request.

    Args:
        client: Client of a server that was started from `model_path` and is idle.
        model_path: Checkpoint folder, as both this process and the server see it.
        dtype: Dtype of the server's weights.
        broadcast_port: A free port of this machine, for updates by broadcast too; the server must then
            run here. None leaves them out.

    Raises:
        ServerRefusedError: The server refused a request or an update.
        ServerUnavailableError: The server does not answer.
    """
    processor = PolicyProcessor.from_pretrained(model_path)
    model = load_policy(model_path, dtype).requires_grad_(False)
    pages = [page_png(9000 + index) for index in range(3)]
    checker = _Checker(client, processor, model)
    cases = [
        await checker.case("text only", []),
        await checker.case("one image", pages[:1]),
        await checker.case("several images", pages),
        await checker.case("temperature 0.6", pages[:1], temperature=0.6),
        await checker.cut_case(pages[:1]),
    ]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "changed"
        shutil.copytree(model_path, folder)
        _change_vision(model)
        cast("PreTrainedModel", model).save_pretrained(folder)
        try:
            await client.weights.load(str(folder), flush_cache=True)
            cases.append(await checker.case("new image after an update", [page_png(9100)]))
            cases.append(await checker.case("seen image after an update", pages[:1]))
            if broadcast_port is not None:
                with RankZero(port=broadcast_port, group_name=_GROUP) as sender:
                    await join(client, sender)
                    try:
                        cases += await checker.broadcast_cases(sender, pages[:1])
                    finally:
                        await client.weights.leave(_GROUP)
        finally:
            await client.weights.load(_absolute(model_path), flush_cache=True)
    return cases


class _Checker:
    def __init__(
        self, client: SGLangClient, processor: PolicyProcessor, model: torch.nn.Module
    ) -> None:
        self._client = client
        self._processor = processor
        self._model = model

    async def case(
        self, name: str, pages: Sequence[bytes], *, temperature: float = 1.0
    ) -> ParityCase:
        request = page_request(
            self._processor, pages, max_new_tokens=_NUM_TOKENS, temperature=temperature
        )
        result = await self._client.generate(request)
        difference = largest_difference(self._model, self._processor, request, pages, result)
        return ParityCase(name=name, num_tokens=len(result.output_ids), max_difference=difference)

    async def cut_case(self, pages: Sequence[bytes]) -> ParityCase:
        request = page_request(self._processor, pages, max_new_tokens=_NUM_LONG_TOKENS)
        generator = InterruptibleGenerator(self._client)
        async with UnwrappedTaskGroup() as group:
            task = group.create_task(generator.generate(request))
            for _ in range(_NUM_CUTS):
                await asyncio.sleep(_BEFORE_CUT_S)
                await self._client.pause_generation()
                await self._client.continue_generation()
        difference = largest_difference(self._model, self._processor, request, pages, task.result())
        num_cuts = generator.num_interrupted
        return ParityCase(
            name=f"long answer, cut {num_cuts} times",
            num_tokens=_NUM_LONG_TOKENS,
            max_difference=difference,
        )

    async def broadcast_cases(self, sender: RankZero, pages: Sequence[bytes]) -> list[ParityCase]:
        cases: list[ParityCase] = []
        for is_flattened, form in ((False, "tensors"), (True, "a bucket")):
            changed = _change_vision(self._model)
            await publish(
                self._client, sender, changed, is_flattened=is_flattened, weight_version=None
            )
            cases.append(await self.case(f"seen image after {form}", pages))
        return cases


@torch.no_grad()
def _change_vision(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Change the vision weights in place; return them by name."""
    generator = torch.Generator().manual_seed(1)
    changed: dict[str, torch.Tensor] = {}
    for name, weight in model.named_parameters():
        if "visual" in name:
            noise = torch.randn(weight.shape, generator=generator) * _NOISE
            weight.add_(noise.to(weight.dtype))
            changed[name] = weight
    return changed


def _absolute(path: str) -> str:
    return str(Path(path).absolute())


def page_png(seed: int, *, width: int = 160, height: int = 224) -> bytes:
    """Return a page with a few boxes and words as PNG; equal seeds give equal bytes."""
    rng = random.Random(seed)
    page = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(page)
    for _ in range(5):
        x, y = rng.randrange(width), rng.randrange(height)
        colour = (rng.randrange(256), rng.randrange(256), rng.randrange(256))
        draw.rectangle((x, y, x + rng.randrange(8, 60), y + rng.randrange(8, 60)), fill=colour)
        draw.text((x, y), f"item {rng.randrange(1000)}", fill="black")
    buffer = io.BytesIO()
    page.save(buffer, format="PNG")
    return buffer.getvalue()


def as_base64(image: bytes) -> str:
    """Return the form in which an image travels in `image_data`."""
    return base64.b64encode(image).decode()


def page_request(
    processor: PolicyProcessor, pages: Sequence[bytes], **changes: object
) -> GenerateRequest:
    """Return a request about `pages` whose answer ends at its budget of 6 tokens.

    Args:
        changes: Fields of the request that differ.
    """
    fields: dict[str, object] = {
        "input_ids": processor.build_prompt("click the button", [], len(pages)),
        "images": [as_base64(page) for page in pages],
        "max_new_tokens": 6,
        "masked_token_ids": (*processor.masked_token_ids, processor.eos_token_id),
    }
    return GenerateRequest(**{**fields, **changes})  # pyright: ignore[reportArgumentType]


def largest_difference(
    model: torch.nn.Module,
    processor: PolicyProcessor,
    request: GenerateRequest,
    pages: Sequence[bytes],
    result: GenerateResult,
    *,
    first: int = 0,
) -> float:
    """Return the largest difference of an answer's log-probs to the reference, in nats.

    Args:
        pages: The images of `request`, encoded.
        first: Index of the first token that is compared.
    """
    expected = reference_logprobs(
        model,
        processor,
        prompt_ids=request.input_ids,
        images=pages,
        output_ids=result.output_ids,
        temperature=request.temperature or 1.0,
        masked_token_ids=request.masked_token_ids,
    )
    pairs = zip(result.logprobs[first:], expected[first:], strict=True)
    return max(abs(found - wanted) for found, wanted in pairs)


@torch.inference_mode()
def reference_logprobs(
    model: torch.nn.Module,
    processor: PolicyProcessor,
    *,
    prompt_ids: Sequence[int],
    images: Sequence[bytes],
    output_ids: Sequence[int],
    temperature: float = 1.0,
    masked_token_ids: Sequence[int] = (),
) -> list[float]:
    """Return the log-prob of each output token by one full HF forward.

    Args:
        model: The HF model, in evaluation mode.
        prompt_ids: Prompt with one placeholder per image.
        masked_token_ids: Ids at minus infinity.
    """
    inputs = processor.model_inputs([*prompt_ids, *output_ids], images)
    kwargs: dict[str, torch.Tensor] = {}
    if inputs.pixel_values is not None and inputs.image_grid_thw is not None:
        kwargs = {"pixel_values": inputs.pixel_values, "image_grid_thw": inputs.image_grid_thw}
    logits = model(
        input_ids=inputs.input_ids[None],
        position_ids=inputs.position_ids[:, None],
        use_cache=False,
        **kwargs,
    ).logits[0, -len(output_ids) - 1 : -1]
    logits = logits.float()
    logits[:, list(masked_token_ids)] = -torch.inf
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    return logprobs.gather(1, torch.tensor(output_ids)[:, None])[:, 0].tolist()
