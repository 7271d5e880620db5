"""Bytes of SGLang's HTTP to and from our types; no I/O.

Invariants:

* Tokens are read from `output_token_logprobs`, never from `output_ids`: an aborted stream of
  SGLang repeats only its last id there, while the log-prob list is always whole.
* A version is the one that the same (partial) answer carries. In a stream each chunk's own label
  is given to the tokens that are new in it.
* What does not have the expected form raises; nothing is guessed or filled in.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, cast

import msgspec

from awrl_rollout.errors import ServerRefusedError, ServerUnavailableError
from awrl_rollout.generation.protocol import GenerateRequest, GenerateResult

MASKED_LOGIT_BIAS = -1.0e9
"""Added to the logit of a masked id. JSON has no infinity; at this size the probability is exactly
0 in float32 (and the others are the same bits as with minus infinity) at any usual temperature."""


TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Status and whole body of one HTTP answer."""

    status: int
    """HTTP status code."""
    body: bytes
    """The body, complete."""


class WeightBucket(msgspec.Struct, frozen=True, kw_only=True):
    """What one broadcast carries, in its order.

    Raises:
        ValueError: The three lists differ in length, or are empty.
    """

    names: Sequence[str]
    """Parameter names as in the server's checkpoint."""
    dtypes: Sequence[str]
    """Torch dtype names without the prefix, such as `bfloat16`."""
    shapes: Sequence[Sequence[int]]
    """Shape of each tensor."""
    is_flattened: bool = True
    """One broadcast of all bytes, as uint8 one behind the other; else one per tensor."""

    def __post_init__(self) -> None:
        lengths = (len(self.names), len(self.dtypes), len(self.shapes))
        if len(set(lengths)) != 1 or not self.names:
            raise ValueError(
                "names, dtypes and shapes must have one length > 0, got "
                f"{lengths[0]}, {lengths[1]} and {lengths[2]}. Name every tensor once."
            )


class WeightChecksums(msgspec.Struct, frozen=True, kw_only=True):
    """Checksums of a server's weights."""

    by_name: dict[str, str]
    """Hex digest by the server's name of the tensor (SGLang fuses some); where the ranks of a tensor
    parallel server differ, those of all ranks, joined by `+`."""
    total: str
    """One digest over all of them, likewise of all ranks: servers of one size compare."""


class _SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    max_new_tokens: int
    temperature: float
    top_p: float
    skip_special_tokens: bool = True
    stop_token_ids: list[int] | None = None
    sampling_seed: int | None = None
    logit_bias: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _GenerateBody(msgspec.Struct, kw_only=True, omit_defaults=True):
    rid: str
    input_ids: Sequence[int]
    sampling_params: _SamplingParams
    image_data: Sequence[str] | None = None
    return_logprob: bool = False
    stream: bool = False


@functools.lru_cache(maxsize=64)
def _logit_bias(masked_token_ids: tuple[int, ...]) -> msgspec.Raw:
    bias = {str(token_id): MASKED_LOGIT_BIAS for token_id in masked_token_ids}
    return msgspec.Raw(msgspec.json.encode(bias))


def generate_body(request: GenerateRequest, *, rid: str, stream: bool = False) -> bytes:
    """Return the JSON body of `/generate` for `request`.

    `rid` is the attempt's id, unique at the server; a stream is answered as server-sent events.
    """
    params = _SamplingParams(
        max_new_tokens=request.max_new_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        skip_special_tokens=False,
        stop_token_ids=list(request.stop_token_ids) or None,
        sampling_seed=request.seed,
    )
    if request.masked_token_ids:
        params.logit_bias = _logit_bias(tuple(request.masked_token_ids))
    body = _GenerateBody(
        rid=rid,
        input_ids=request.input_ids,
        sampling_params=params,
        image_data=request.images or None,
        return_logprob=True,
        stream=stream,
    )
    return msgspec.json.encode(body)


class _FinishReason(msgspec.Struct):
    type: Literal["stop", "length", "abort"]
    message: str | None = None
    status_code: int | None = None


class _MetaInfo(msgspec.Struct):
    finish_reason: _FinishReason | None = None
    weight_version: str = "default"
    completion_tokens: int | None = None
    output_token_logprobs: list[tuple[float | None, TokenId, str | None]] = []
    output_token_weight_versions: list[str] | None = None


class _Answer(msgspec.Struct):
    meta_info: _MetaInfo | None = None
    error: dict[str, Any] | None = None


_ANSWER = msgspec.json.Decoder(_Answer)


def answer_from_reply(reply: Reply, *, initial_version: int) -> GenerateResult:
    """Return the result that the body of a good `/generate` answer holds.

    Args:
        reply: One JSON answer, or the whole text of a stream.
        initial_version: Number that stands for SGLang's start label `default`.

    Raises:
        ServerUnavailableError: The body is not an answer, is cut short, or holds a log-prob that
            is not finite.
        ServerRefusedError: A stream that ends in an error of the request.
    """
    is_stream = reply.body.startswith(b"data:")
    chunks = list(_stream_chunks(reply.body)) if is_stream else [_decode(reply.body)]
    if not chunks:
        raise ServerUnavailableError("answer must hold a chunk, got an empty stream. Try again.")
    versions: list[int] = []
    for meta in chunks:
        num_new = len(meta.output_token_logprobs) - len(versions)
        versions += _new_versions(meta, num_new, initial_version)
    return _result(chunks[-1], versions)


def _new_versions(meta: _MetaInfo, num_new: int, initial_version: int) -> list[int]:
    """Versions of the last `num_new` tokens of an answer or chunk."""
    if num_new <= 0:
        return []
    labels = meta.output_token_weight_versions
    if labels is None:
        return [_version(meta.weight_version, initial_version)] * num_new
    if len(labels) < num_new:
        raise ServerUnavailableError(
            f"each of {num_new} tokens must have a version, got {len(labels)}. "
            "The server loses track of its tokens."
        )
    return [_version(label, initial_version) for label in labels[-num_new:]]


def _version(label: str, initial_version: int) -> int:
    if label == "default":
        return initial_version
    try:
        return int(label)
    except ValueError as error:
        raise ServerUnavailableError(
            f"weight_version must be an integer or 'default', got {label!r}. "
            "Someone else updates this server."
        ) from error


def _result(meta: _MetaInfo, versions: list[int]) -> GenerateResult:
    if meta.finish_reason is None:
        raise ServerUnavailableError(
            "answer must end with a finish_reason, got none. The stream was cut short."
        )
    reason = meta.finish_reason.type
    logprobs = [entry[0] for entry in meta.output_token_logprobs]
    num_tokens = len(logprobs) if meta.completion_tokens is None else meta.completion_tokens
    # A cut answer keeps the tokens whose log-probs it has; the rest is generated again.
    if reason != "abort" and (not logprobs or len(logprobs) != num_tokens):
        raise ServerUnavailableError(
            f"each of {num_tokens} tokens must have a log-prob, got {len(logprobs)}. "
            "The server does not return log-probs for all that it generates."
        )
    if any(value is None or not math.isfinite(value) for value in logprobs):
        raise ServerUnavailableError(
            f"log-probs must be finite, got {logprobs}. The server's weights hold NaN or infinity."
        )
    return GenerateResult(
        output_ids=tuple(entry[1] for entry in meta.output_token_logprobs),
        logprobs=tuple(cast("list[float]", logprobs)),
        versions=tuple(versions),
        stop_reason=reason,
    )


def _stream_chunks(body: bytes) -> Iterator[_MetaInfo]:
    for line in body.split(b"\n"):
        payload = line.removeprefix(b"data:").strip()
        if payload and payload != b"[DONE]":
            yield _decode(payload)


def _decode(body: bytes) -> _MetaInfo:
    try:
        answer = _ANSWER.decode(body)
    except msgspec.DecodeError as error:
        raise ServerUnavailableError(
            f"answer must be one of SGLang's, got {body[:200]!r} ({error}). "
            "Check what listens at this address."
        ) from error
    if answer.error is not None:
        raise ServerRefusedError(f"the server answered {answer.error.get('message')!r} in a stream")
    if answer.meta_info is None:
        raise ServerUnavailableError(
            f"answer must hold meta_info, got {body[:200]!r}. Check what listens at this address."
        )
    return answer.meta_info


class _Rank(msgspec.Struct):
    checksums: dict[str, str]
    per_gpu_checksum: str


class _Checksums(msgspec.Struct):
    ranks: list[_Rank]


def checksums_from_reply(reply: Reply) -> WeightChecksums:
    """Return the checksums of a `/weights_checker` answer, which lists them by rank.

    Raises:
        ServerUnavailableError: The answer has another form.
    """
    try:
        ranks = msgspec.json.decode(reply.body, type=_Checksums).ranks
    except msgspec.DecodeError as error:
        raise ServerUnavailableError(
            f"checksums must be listed by rank, got {reply.body[:200]!r}. Check the server."
        ) from error
    if not ranks:
        raise ServerUnavailableError(
            "checksums must be those of a rank, got none. Check the server."
        )
    names = {name: None for rank in ranks for name in rank.checksums}
    return WeightChecksums(
        by_name={
            name: _joined([rank.checksums.get(name, "-") for rank in ranks]) for name in names
        },
        total=_joined([rank.per_gpu_checksum for rank in ranks]),
    )


def _joined(digests: Sequence[str]) -> str:
    """Return what all ranks say, else what each says."""
    return digests[0] if len(set(digests)) == 1 else "+".join(digests)


def refusal_text(reply: Reply) -> str:
    """Return the reason in an error answer, in whichever of SGLang's forms it comes."""
    try:
        body: object = msgspec.json.decode(reply.body)
    except msgspec.DecodeError:
        return reply.body[:500].decode(errors="replace").strip()
    if isinstance(body, Mapping):
        fields = cast("Mapping[str, object]", body)
        error = fields.get("error")
        if isinstance(error, Mapping):
            fields = cast("Mapping[str, object]", error)
        if "message" in fields:
            return str(fields["message"])
    return reply.body[:500].decode(errors="replace")
