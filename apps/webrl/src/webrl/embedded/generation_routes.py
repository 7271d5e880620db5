"""HTTP endpoints of generation: generate, abort, pause, continue, flush.

Invariants:

* A client that goes away takes its request with it: the handler is cancelled and aborts it.
* Answers have SGLang's fields. One is added: `output_token_weight_versions`, when the tokens of an
  answer were not all made under the version that the answer names.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from aiohttp import web

from webrl.embedded.request import GenerationAnswer, GenerationRequest
from webrl.embedded.state import STATE, ServerState
from webrl.embedded.wire import (
    AbortBody,
    ContinueBody,
    GenerateBody,
    PauseBody,
    decode_body,
    decode_image,
)
from webrl.errors import BadRequestError


async def _generate(http: web.Request) -> web.StreamResponse:
    state = http.app[STATE]
    body = decode_body(await http.read(), GenerateBody)
    request, answers = _request(state, body)
    state.active_rids.add(request.rid)
    state.engine.submit(request)
    is_answered = False
    try:
        if request.is_stream:
            response = await _stream(http, state, request.rid, body, answers)
        else:
            answer = await answers.get()
            is_answered = True
            response = _final(state, request.rid, body, answer)
        is_answered = True
        return response
    finally:
        state.active_rids.discard(request.rid)
        if not is_answered:
            rid = request.rid
            await asyncio.shield(state.engine.call(lambda scheduler: scheduler.abort_exact(rid)))


def _final(
    state: ServerState, rid: str, body: GenerateBody, answer: GenerationAnswer
) -> web.Response:
    if isinstance(answer.error, BadRequestError):
        raise answer.error
    if answer.error is not None:
        message = f"{type(answer.error).__name__}: {answer.error}"
        return _json({"error": {"message": message}}, status=500)
    return _json(_reply(state, rid, body, answer))


def _request(
    state: ServerState, body: GenerateBody
) -> tuple[GenerationRequest, asyncio.Queue[GenerationAnswer]]:
    if not body.input_ids:
        raise BadRequestError("input_ids must hold at least one token, got none.")
    if body.logprob_start_len not in (None, -1):
        raise BadRequestError(
            f"logprob_start_len must be -1, got {body.logprob_start_len}. "
            "This server gives log-probs of the answer only."
        )
    body.sampling_params.check(state.runner.vocab_size)
    rid = body.rid or state.next_rid()
    if rid in state.active_rids:
        raise BadRequestError(f"rid must be unique, got {rid!r}, which is in flight.")
    images = body.image_data or []
    images = [images] if isinstance(images, str) else images
    seed = body.sampling_params.sampling_seed
    answers: asyncio.Queue[GenerationAnswer] = asyncio.Queue()
    request = GenerationRequest(
        rid=rid,
        prompt_ids=tuple(body.input_ids),
        images=tuple(decode_image(image) for image in images),
        params=body.sampling_params,
        bias=state.bias(body.sampling_params.logit_bias),
        seed=state.next_seed() if seed is None else seed,
        deliver=answers.put_nowait,
        is_stream=bool(body.stream),
    )
    return request, answers


async def _stream(
    http: web.Request,
    state: ServerState,
    rid: str,
    body: GenerateBody,
    answers: asyncio.Queue[GenerationAnswer],
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(http)
    while True:
        answer = await answers.get()
        if answer.error is None:
            event = _reply(state, rid, body, answer)
        else:
            event = {"error": {"message": str(answer.error), "code": 400}}
        await response.write(b"data: " + msgspec.json.encode(event) + b"\n\n")
        if answer.finish is not None or answer.error is not None:
            break
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _reply(
    state: ServerState, rid: str, body: GenerateBody, answer: GenerationAnswer
) -> dict[str, Any]:
    finish = answer.finish
    reason: dict[str, Any] | None = None
    if finish is not None:
        reason = {"type": finish.type}
        if finish.type == "length":
            reason["length"] = len(answer.output_ids)
        elif finish.type == "stop":
            reason["matched"] = finish.matched
        else:
            reason["message"] = finish.message
    meta: dict[str, Any] = {
        "id": rid,
        "finish_reason": reason,
        "prompt_tokens": answer.num_prompt_tokens,
        "completion_tokens": len(answer.output_ids),
        "cached_tokens": answer.num_cached_tokens,
        "weight_version": answer.weight_version,
    }
    if body.return_logprob:
        meta["output_token_logprobs"] = [
            (logprob, token_id, None)
            for logprob, token_id in zip(answer.logprobs, answer.output_ids, strict=True)
        ]
    if any(version != answer.weight_version for version in answer.versions):
        meta["output_token_weight_versions"] = answer.versions
    text = state.runner.text_of(answer.output_ids)
    return {"text": text, "output_ids": answer.output_ids, "meta_info": meta}


async def _abort(http: web.Request) -> web.Response:
    body = decode_body(await http.read(), AbortBody)
    if body.abort_all or body.rid:
        prefix = "" if body.abort_all else body.rid
        await http.app[STATE].engine.call(lambda scheduler: scheduler.abort(prefix))
    return web.Response()


async def _pause(http: web.Request) -> web.Response:
    body = decode_body(await http.read(), PauseBody)
    await http.app[STATE].engine.call(lambda scheduler: scheduler.pause(body.mode))
    return _json({"message": "Generation paused successfully.", "status": "ok"})


async def _continue(http: web.Request) -> web.Response:
    decode_body(await http.read(), ContinueBody)
    await http.app[STATE].engine.call(lambda scheduler: scheduler.resume())
    return _json({"message": "Generation continued successfully.", "status": "ok"})


async def _flush(http: web.Request) -> web.Response:
    is_flushed = await http.app[STATE].engine.call(lambda scheduler: scheduler.flush())
    if is_flushed:
        return web.Response(text="Cache flushed.\n")
    return web.Response(status=400, text="Flush cache failed: requests are running or waiting.\n")


def _json(body: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode(body), content_type="application/json"
    )


def generation_routes() -> list[web.RouteDef]:
    """Return the routes of generation."""
    return [
        web.post("/generate", _generate),
        web.put("/generate", _generate),
        web.post("/abort_request", _abort),
        web.post("/pause_generation", _pause),
        web.post("/continue_generation", _continue),
        web.post("/flush_cache", _flush),
        web.get("/flush_cache", _flush, allow_head=False),
    ]
