"""What stands in for a model in a server: prompts are counted, time passes, actions are said.

Invariants:

* an answer is a thought and one action that the environment can perform; what an interrupted answer
  has said already is gone on from, never said again;
* ids that a request masks are never said: without an end token an answer goes on to its budget;
* the time of a step depends on the running requests alone, as a saturated server's does;
* neither transformers nor a model is imported: the process takes the memory of torch and little more.
"""

from __future__ import annotations

import asyncio
import io
import json
import math
import random
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any, cast

import torch
from PIL import Image
from tokenizers import Tokenizer

from webrl.embedded.engine import Engine
from webrl.embedded.request import Drawn, GenerationRequest
from webrl.embedded.scheduler import RequestScheduler
from webrl.embedded.server import serve
from webrl.embedded.state import ServerState
from webrl.embedded.weights import WeightTable, read_tensors
from webrl.errors import BadRequestError
from webrl.rehearse.server_config import RehearsedServerConfig

TOKENS_PER_STEP = 8
"""Tokens that one step of the thread makes for each request: a step each would take a core."""

_MASKED_BELOW = -1e6
"""A bias that no logit makes up for."""

_NUM_CLICKS = 48
"""Different clicks that are said."""


async def serve_script(config: RehearsedServerConfig, listener: socket.socket) -> None:
    """Answer on `listener` until SIGTERM or SIGINT."""
    torch.set_num_threads(config.num_threads)
    model = ScriptedModel(config)
    dtype = cast("torch.dtype", getattr(torch, config.dtype))
    table = WeightTable(
        {name: tensor.to(dtype, copy=True) for name, tensor in read_tensors(model.path).items()}
    )
    scheduler = RequestScheduler(
        model,
        ScriptedBatch(model, config),
        max_running=config.max_running_requests,
        weight_version=config.weight_version,
    )
    engine = Engine(scheduler, asyncio.get_running_loop())
    await serve(ServerState(config, model, table, scheduler, engine), listener)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptedPrompt:
    """A prompt that was counted."""

    num_tokens: int
    """Tokens, image tokens included."""
    said: tuple[int, ...]
    """What an interrupted answer at its end has said so far."""


class ScriptedModel:
    """Tokenizer, sizes and answers of a checkpoint directory; its weights are not computed with."""

    def __init__(self, config: RehearsedServerConfig) -> None:
        self.path = Path(config.model_path)
        whole = _read_json(self.path / "config.json")
        text = whole["text_config"]
        self.vocab_size = int(text["vocab_size"])
        self.model_type = str(whole["model_type"])
        self.architectures = tuple(map(str, whole["architectures"]))
        self.context_length = min(
            config.context_length or text["max_position_embeddings"],
            text["max_position_embeddings"],
        )
        self._image_token_id = int(whole["image_token_id"])
        picture = _read_json(self.path / "preprocessor_config.json")
        self._edge = int(picture["patch_size"]) * int(picture["merge_size"])
        self._max_pixels = int(picture["size"]["longest_edge"])
        self._tokenizer = Tokenizer.from_file(str(self.path / "tokenizer.json"))
        self.eos_token_id = int(text["eos_token_id"])
        self.eos_token_ids = frozenset({self.eos_token_id})
        self._header = self._encode("<|im_start|>assistant\n")
        self._think_end = self._encode("</think>")
        self._filler = self._encode("a")[0]
        self._config = config
        self._rng = random.Random(config.seed)
        self._clicks = [
            self._encode(f"left_click({self._rng.randrange(1000)}, {self._rng.randrange(1000)})")
            for _ in range(_NUM_CLICKS)
        ]
        self._clicks += [self._encode(f"scroll(500, 500, 0, {dy})") for dy in (-400, 400)]
        self._answers = [self._encode(f'answer("{word}")') for word in ("yes", "no", "done")]

    def text_of(self, token_ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""
        return self._tokenizer.decode(list(token_ids))

    def prepare(self, token_ids: Sequence[int], images: Sequence[bytes]) -> ScriptedPrompt:
        """Return a prompt that can be served.

        Raises:
            BadRequestError: An id outside the vocabulary, a wrong number of images, or bytes that
                are no image.
        """
        if min(token_ids) < 0 or max(token_ids) >= self.vocab_size:
            raise BadRequestError(
                f"input_ids must be in [0, {self.vocab_size - 1}], "
                f"got {min(token_ids)} to {max(token_ids)}."
            )
        num_places = sum(1 for token in token_ids if token == self._image_token_id)
        if num_places != len(images):
            raise BadRequestError(
                f"prompt and images must fit together: {num_places} places and {len(images)} images."
            )
        num_tokens = len(token_ids) - num_places + sum(map(self._num_image_tokens, images))
        return ScriptedPrompt(num_tokens=num_tokens, said=self._said(token_ids))

    def _num_image_tokens(self, data: bytes) -> int:
        """Return the tokens of an image, by its size alone."""
        try:
            with Image.open(io.BytesIO(data)) as image:
                width, height = image.size
        except (OSError, SyntaxError, ValueError) as error:
            raise BadRequestError(f"prompt and images must fit together: {error}") from error
        shrink = min(1.0, math.sqrt(self._max_pixels / (width * height)))
        edges = (max(1, round(shrink * size / self._edge)) for size in (width, height))
        return math.prod(edges)

    def _said(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        for start in range(len(token_ids) - len(self._header), -1, -1):
            if token_ids[start] == self._header[0]:
                after = start + len(self._header)
                is_header = list(token_ids[start:after]) == self._header
                return tuple(token_ids[after:]) if is_header else ()
        return ()

    def answer(self, request: GenerationRequest) -> Iterator[int]:
        """Return the tokens of an answer, without end where the end token is masked."""
        assert isinstance(request.prompt, ScriptedPrompt), "a waiting request keeps its prompt"
        masked = {
            int(key)
            for key, value in (request.params.logit_bias or {}).items()
            if value < _MASKED_BELOW
        }
        filler = self._filler
        while filler in masked or filler in request.stop_ids:
            filler = (filler + 1) % self.vocab_size
        rest = self._rest(list(request.prompt.said), filler)
        tokens = chain(rest, repeat(self.eos_token_id))
        return (filler if token in masked else token for token in tokens)

    def _rest(self, said: list[int], filler: int) -> list[int]:
        """Return what is left to say after `said`."""
        length, end = len(self._think_end), self._think_end
        ends = [i + length for i in range(len(said)) if said[i : i + length] == end]
        if ends:
            spoken = said[ends[0] :]
            fitting = [a for a in self._clicks + self._answers if a[: len(spoken)] == spoken]
            return self._rng.choice(fitting)[len(spoken) :] if fitting else []
        mean = self._config.thought_tokens
        thought = self._rng.randint(mean // 2, mean + mean // 2)
        has_answer = self._rng.random() < self._config.answer_share
        action = self._rng.choice(self._answers if has_answer else self._clicks)
        return [filler] * max(0, thought - len(said)) + self._think_end + action

    def draw_logprob(self) -> float:
        """Return the log-prob of a token."""
        return -2.0 * self._rng.random()

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


class ScriptedBatch:
    """Requests that get their tokens as time passes."""

    def __init__(self, model: ScriptedModel, config: RehearsedServerConfig) -> None:
        self._model = model
        self._config = config
        self._answers: dict[int, Iterator[int]] = {}
        self.requests: list[GenerationRequest] = []
        self.num_prefill_tokens = 0
        self.num_shared_prompts = 0
        self.num_decode_steps = 0
        self.num_output_tokens = 0

    def forget_prompts(self) -> None:
        """Nothing of a prompt is kept."""

    def admit(self, requests: Sequence[GenerationRequest], version: str) -> list[Drawn]:
        """Take the time of the prefills, and say the first token of each."""
        time.sleep(self._config.prefill_s * len(requests))
        for request in requests:
            self._answers[id(request)] = self._model.answer(request)
            self.num_prefill_tokens += request.num_prompt_tokens
            request.prompt = None
            self.requests.append(request)
        return [self._say(request, 1, version) for request in requests]

    def decode(self, version: str) -> list[Drawn]:
        """Take the time of some steps, and say the next tokens of every request."""
        load = max(1.0, len(self.requests) / self._config.saturation)
        time.sleep(TOKENS_PER_STEP * self._config.token_s * load)
        self.num_decode_steps += TOKENS_PER_STEP
        return [self._say(request, TOKENS_PER_STEP, version) for request in list(self.requests)]

    def _say(self, request: GenerationRequest, count: int, version: str) -> Drawn:
        answer = self._answers[id(request)]
        finish = None
        for _ in range(count):
            finish = request.append(next(answer), self._model.draw_logprob(), version)
            self.num_output_tokens += 1
            if finish is not None:
                self.release(request)
                break
        return request, finish

    def release(self, request: GenerationRequest) -> None:
        """Take `request` out of the batch."""
        self.requests = [other for other in self.requests if other is not request]
        del self._answers[id(request)]

    def clear(self) -> list[GenerationRequest]:
        """Empty the batch; return who was in it."""
        requests, self.requests = self.requests, []
        self._answers.clear()
        return requests


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))
