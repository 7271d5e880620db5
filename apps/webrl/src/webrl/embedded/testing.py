"""What tests of an inference server need: pages, a reference forward, the server itself.

Invariants:

* The reference goes through the HF model's own forward in one piece: no cache, no batching, no code
  that it shares with the server but the processor.
"""

from __future__ import annotations

import asyncio
import base64
import io
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import torch
from awrl_rollout import GenerateRequest, GenerateResult, SGLangClient
from PIL import Image, ImageDraw

from webrl.policy import PolicyProcessor

__all__ = [
    "ServerUnderTest",
    "as_base64",
    "largest_difference",
    "num_running",
    "page_png",
    "page_request",
    "reference_logprobs",
    "run_bounded",
    "until_running",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerUnderTest:
    """The server that the contract suite talks to."""

    url: str
    """Its address."""
    model_path: Path
    """Folder of the checkpoint that it was started with."""
    dtype: torch.dtype
    """Dtype of its weights."""
    is_embedded: bool
    """Whether it is ours."""

    @property
    def tolerance(self) -> float:
        """Largest difference of a log-prob to the HF forward that is rounding."""
        if self.dtype != torch.float32:
            return 0.05
        return 1e-4 if self.is_embedded else 1e-3


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
        processor: Makes the model inputs.
        prompt_ids: Prompt with one placeholder per image.
        images: Encoded images.
        output_ids: Tokens whose log-probs are wanted.
        temperature: Divides the logits.
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


def page_request(
    processor: PolicyProcessor, pages: Sequence[bytes], **changes: object
) -> GenerateRequest:
    """Return a request about `pages` whose answer ends at its budget of 6 tokens.

    Args:
        processor: Of the policy that the server serves.
        pages: Encoded images.
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
        model: The reference.
        processor: Of the same checkpoint.
        request: What was asked.
        pages: The images of `request`, encoded.
        result: The answer.
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


def run_bounded(scenario: Callable[[], Awaitable[None]], *, deadline_s: float = 180.0) -> None:
    """Run `scenario` in an event loop of its own; it fails when it takes longer."""

    async def bounded() -> None:
        async with asyncio.timeout(deadline_s):
            await scenario()

    asyncio.run(bounded())


async def num_running(client: SGLangClient, server: ServerUnderTest) -> int:
    """Requests in the running batch, from the server's own words."""
    if server.is_embedded:
        states = (await client.server_info())["internal_states"]
        assert isinstance(states, list)
        return int(states[0]["num_running"])
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}/v1/loads") as reply:
        return int((await reply.json())["loads"][0]["num_running_reqs"])


async def until_running(client: SGLangClient, server: ServerUnderTest, count: int) -> None:
    """Return once `count` requests run."""
    while await num_running(client, server) < count:
        pass
