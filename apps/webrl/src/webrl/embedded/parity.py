"""Does a live server answer with the trainer's log-probs? Also for pages that it has seen before.

Invariants:

* The reference is the HF forward of the same checkpoint, in this process.
* The server ends with the weights of `model_path`, whatever happens in between.

Meant for a server that nobody else uses meanwhile: the check publishes changed weights to find servers
that keep image features across an update.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from awrl_rollout import InterruptibleGenerator, SGLangClient

from webrl.embedded.testing import largest_difference, page_png, page_request
from webrl.embedded.testing_weights import RankZero, join, publish
from webrl.policy import PolicyProcessor, load_policy

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["ParityCase", "check_parity"]

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
        async with asyncio.TaskGroup() as group:
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
