"""Bodies of the requests that the server takes, as SGLang 0.5.16 names their fields.

Invariants:

* A field that the server would not honour is an error that names it, never silently dropped.
* Numbers are checked here, before anything is queued.
"""

from __future__ import annotations

import base64
import binascii
import math
from typing import Literal, TypeVar

import msgspec

from webrl.errors import BadRequestError

_GREEDY_BELOW = 1e-6
"""Temperatures below this mean greedy, as in SGLang."""


class SamplingParams(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Sampling parameters of one request; the names and defaults are SGLang's."""

    max_new_tokens: int | None = 128
    """Budget of the answer, in tokens; `None` means all that the context holds."""
    temperature: float | None = 1.0
    """0 means greedy; log-probs are then those at temperature 1."""
    top_p: float | None = 1.0
    """Nucleus bound."""
    top_k: int | None = -1
    """Number of best ids to draw from; -1 means all."""
    stop_token_ids: list[int] | None = None
    """Ids that end the answer, beside the model's own."""
    ignore_eos: bool | None = False
    """Go on past the model's end tokens."""
    logit_bias: dict[str, float] | None = None
    """Added to the logits before temperature and log-softmax; -1e9 masks an id."""
    sampling_seed: int | None = None
    """Makes the draw a function of seed and token position alone."""
    skip_special_tokens: bool | None = True
    """How `text` is decoded."""
    spaces_between_special_tokens: bool | None = True
    """Accepted; the tokenizer decides."""
    no_stop_trim: bool | None = False
    """Accepted; the stop token is in `output_ids` either way."""
    n: int | None = 1
    """Answers per request; 1 only."""

    @property
    def is_greedy(self) -> bool:
        """Whether the best id is taken."""
        return self.sampling_temperature < _GREEDY_BELOW or self.top_k == 1

    @property
    def sampling_temperature(self) -> float:
        """The temperature, 1 when absent."""
        return 1.0 if self.temperature is None else self.temperature

    @property
    def logprob_temperature(self) -> float:
        """Temperature of the log-probs: 1 for greedy, as in SGLang."""
        return 1.0 if self.is_greedy else self.sampling_temperature

    def check(self, vocab_size: int) -> None:
        """Raise `BadRequestError` when a parameter breaks its rule."""
        temperature = self.sampling_temperature
        if not math.isfinite(temperature) or temperature < 0:
            raise BadRequestError(
                f"temperature must be a non-negative finite number, got {temperature}."
            )
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise BadRequestError(f"top_p must be in (0, 1], got {self.top_p}.")
        if self.top_k is not None and self.top_k != -1 and self.top_k < 1:
            raise BadRequestError(f"top_k must be -1 (all) or at least 1, got {self.top_k}.")
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise BadRequestError(f"max_new_tokens must be >= 1, got {self.max_new_tokens}.")
        if self.n not in (None, 1):
            raise BadRequestError(f"n must be 1, got {self.n}. Send one request per answer.")
        for key, value in (self.logit_bias or {}).items():
            if not key.isdecimal() or int(key) >= vocab_size or math.isnan(value):
                raise BadRequestError(
                    f"logit_bias must have keys in [0, {vocab_size - 1}] and numbers, "
                    f"got {key!r}: {value}."
                )


class GenerateBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of `/generate`: one prompt by token ids."""

    input_ids: list[int]
    """Prompt with one placeholder id per image."""
    rid: str | None = None
    """Id of the request, unique among those in flight; made when absent."""
    image_data: str | list[str] | None = None
    """Images in prompt order: base64, or a data URI."""
    sampling_params: SamplingParams = msgspec.field(default_factory=SamplingParams)
    """How to sample."""
    return_logprob: bool | None = False
    """GenerationAnswer with the log-prob of each token."""
    logprob_start_len: int | None = None
    """-1 or absent: log-probs of the answer only."""
    stream: bool | None = False
    """GenerationAnswer with server-sent events, one per token."""
    return_text_in_logprobs: bool | None = False
    """Accepted; the third item of a log-prob entry stays null."""
    session_id: str | None = None
    """Accepted; has no effect, as in SGLang."""


class PauseBody(msgspec.Struct, kw_only=True):
    """Body of `/pause_generation`."""

    mode: Literal["abort", "in_place", "retract"] = "abort"


class ContinueBody(msgspec.Struct, kw_only=True):
    """Body of `/continue_generation`."""

    torch_empty_cache: bool = True


class AbortBody(msgspec.Struct, kw_only=True):
    """Body of `/abort_request`."""

    rid: str = ""
    abort_all: bool = False


class InitGroupBody(msgspec.Struct, kw_only=True):
    """Body of `/init_weights_update_group`."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    group_name: str = "weight_update_group"
    backend: str = "nccl"


class DestroyGroupBody(msgspec.Struct, kw_only=True):
    """Body of `/destroy_weights_update_group`."""

    group_name: str = "weight_update_group"


class DistributedUpdateBody(msgspec.Struct, kw_only=True):
    """Body of `/update_weights_from_distributed`."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    group_name: str = "weight_update_group"
    flush_cache: bool = True
    abort_all_requests: bool = False
    weight_version: str | None = None
    load_format: str | None = None


class DiskUpdateBody(msgspec.Struct, kw_only=True):
    """Body of `/update_weights_from_disk`."""

    model_path: str
    load_format: str | None = None
    abort_all_requests: bool = False
    weight_version: str | None = None
    flush_cache: bool = True


class VersionBody(msgspec.Struct, kw_only=True):
    """Body of `/update_weight_version`; like SGLang's it aborts unless told not to."""

    new_version: str
    abort_all_requests: bool = True


class CheckWeightsBody(msgspec.Struct, kw_only=True):
    """Body of `/weights_checker`; `names` is this server's own addition."""

    action: str = "checksum"
    allow_quant_error: bool = False
    names: list[str] | None = None
    """Weights whose checksums are wanted; all when absent."""


BodyT = TypeVar("BodyT", bound=msgspec.Struct)


def decode_body(raw: bytes, body_type: type[BodyT]) -> BodyT:
    """Return the decoded body; an empty one means all defaults.

    Raises:
        BadRequestError: Not JSON, a missing, unknown or wrong field.
    """
    try:
        return msgspec.json.decode(raw or b"{}", type=body_type)
    except msgspec.DecodeError as error:
        raise BadRequestError(f"body must be a JSON object of known fields: {error}.") from error


def decode_image(text: str) -> bytes:
    """Return the encoded image bytes of base64 text or a data URI.

    Raises:
        BadRequestError: Neither; the server fetches no addresses and opens no files.
    """
    payload = text.split(",", 1)[1] if text.startswith("data:") and "," in text else text
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequestError(
            f"image_data must be base64 or a data URI, got {text[:40]!r}. "
            "Addresses and file names are refused."
        ) from error
