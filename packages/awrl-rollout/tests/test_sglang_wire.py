from __future__ import annotations

import json
import math
from typing import Any

import pytest
from awrl_rollout import (
    GenerateRequest,
    GenerateResult,
    ServerRefusedError,
    ServerUnavailableError,
    WeightBucket,
)
from awrl_rollout.sglang.wire import (
    MASKED_LOGIT_BIAS,
    Reply,
    answer_from_reply,
    checksums_from_reply,
    generate_body,
    refusal_text,
)


def decoded(body: object, *, initial_version: int = 0) -> GenerateResult:
    text = body if isinstance(body, str) else json.dumps(body)
    return answer_from_reply(Reply(status=200, body=text.encode()), initial_version=initial_version)


def answer(**meta: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": "r",
        "finish_reason": {"type": "stop", "matched": 2},
        "weight_version": "7",
        "output_token_logprobs": [[-0.5, 4, None], [-0.25, 2, None]],
    }
    return {"text": "x", "output_ids": [4, 2], "meta_info": {**fields, **meta}}


def test_the_body_holds_all_settings_under_sglang_s_names() -> None:
    request = GenerateRequest(
        input_ids=(1, 2),
        images=("aaaa",),
        max_new_tokens=5,
        temperature=0.5,
        top_p=0.75,
        masked_token_ids=(9, 3),
        stop_token_ids=(8,),
        seed=11,
    )
    body = json.loads(generate_body(request, rid="e/1"))
    assert body == {
        "rid": "e/1",
        "input_ids": [1, 2],
        "image_data": ["aaaa"],
        "return_logprob": True,
        "sampling_params": {
            "max_new_tokens": 5,
            "temperature": 0.5,
            "top_p": 0.75,
            "skip_special_tokens": False,
            "stop_token_ids": [8],
            "sampling_seed": 11,
            "logit_bias": {"9": MASKED_LOGIT_BIAS, "3": MASKED_LOGIT_BIAS},
        },
    }


def test_the_body_leaves_out_what_is_not_asked_for() -> None:
    body = json.loads(generate_body(GenerateRequest(input_ids=(1,)), rid="r"))
    assert set(body) == {"rid", "input_ids", "return_logprob", "sampling_params"}
    assert "logit_bias" not in body["sampling_params"]


def test_the_mask_is_finite_and_makes_probability_exactly_zero() -> None:
    assert math.isfinite(MASKED_LOGIT_BIAS)
    assert math.exp(MASKED_LOGIT_BIAS + 1e6) == 0.0


def test_an_answer_gives_tokens_logprobs_and_the_version_it_names() -> None:
    result = decoded(answer())
    assert result.output_ids == (4, 2)
    assert result.logprobs == (-0.5, -0.25)
    assert result.versions == (7, 7)
    assert result.stop_reason == "stop"


def test_the_start_label_means_the_initial_version() -> None:
    assert decoded(answer(weight_version="default"), initial_version=3).versions == (3, 3)


def test_versions_by_token_are_used_when_the_server_gives_them() -> None:
    result = decoded(answer(output_token_weight_versions=["6", "7"]))
    assert result.versions == (6, 7)


def test_an_abort_in_the_queue_is_an_empty_cut() -> None:
    meta = {"finish_reason": {"type": "abort", "message": "Abort in waiting queue"}}
    body = {"text": "", "output_ids": [], "meta_info": {**meta, "weight_version": "7"}}
    result = decoded(body)
    assert (result.output_ids, result.stop_reason) == ((), "abort")


def test_tokens_of_a_stream_carry_the_version_of_the_chunk_that_brought_them() -> None:
    chunks = [
        answer(finish_reason=None, weight_version="1", output_token_logprobs=[[-0.1, 5, None]]),
        answer(
            finish_reason={"type": "length"},
            weight_version="2",
            output_token_logprobs=[[-0.1, 5, None], [-0.2, 6, None]],
        ),
    ]
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    result = decoded(text)
    assert result.output_ids == (5, 6)
    assert result.versions == (1, 2)
    assert result.stop_reason == "length"


@pytest.mark.parametrize("end", ["length", "abort"])
@pytest.mark.parametrize("position", range(6))
def test_a_new_version_at_every_position_of_a_stream_is_stamped_there(
    position: int, end: str
) -> None:
    """What a client sees of `in_place` and `retract` updates: one stream, whose label changes."""
    tokens = [[-0.1 * index, index, None] for index in range(1, 6)]
    text = ""
    for length in range(1, 6):
        label = "7" if length <= position else "8"
        finish = {"type": end} if length == 5 else None
        chunk = answer(
            finish_reason=finish, weight_version=label, output_token_logprobs=tokens[:length]
        )
        text += f"data: {json.dumps(chunk)}\n\n"
    result = decoded(text)
    assert result.output_ids == (1, 2, 3, 4, 5)
    assert result.versions == (7,) * position + (8,) * (5 - position)
    assert result.stop_reason == end


def test_an_aborted_stream_that_repeats_only_its_last_id_keeps_all_tokens() -> None:
    chunk = answer(finish_reason={"type": "abort", "message": "Aborted"})
    chunk["output_ids"] = [2]
    assert decoded(f"data: {json.dumps(chunk)}\n\n").output_ids == (4, 2)


def test_a_stream_that_is_cut_short_is_no_answer() -> None:
    chunk = answer(finish_reason=None)
    with pytest.raises(ServerUnavailableError, match="must end with a finish_reason"):
        decoded(f"data: {json.dumps(chunk)}\n\n")


def test_an_error_in_a_stream_is_a_refusal() -> None:
    with pytest.raises(ServerRefusedError, match="too long"):
        decoded('data: {"error": {"message": "too long", "code": 400}}\n\n')


@pytest.mark.parametrize("value", ["null", "-1e999"])
def test_a_logprob_that_is_not_finite_is_no_answer(value: str) -> None:
    text = json.dumps(answer(output_token_logprobs=[[-0.75, 4, None]])).replace("-0.75", value)
    with pytest.raises(ServerUnavailableError):
        decoded(text)


@pytest.mark.parametrize("text", ["", "<html>", "[]", "{}", '{"meta_info": {"finish_reason": 3}}'])
def test_a_body_of_another_form_is_no_answer(text: str) -> None:
    with pytest.raises(ServerUnavailableError, match="Check what listens at this address"):
        decoded(text)


def test_a_version_that_is_no_number_is_no_answer() -> None:
    with pytest.raises(ServerUnavailableError, match="must be an integer or 'default', got 'v2'"):
        decoded(answer(weight_version="v2"))


def test_checksums_are_read_by_name() -> None:
    rank = {"checksums": {"a": "00"}, "per_gpu_checksum": "ff", "parallelism_info": {}}
    body = json.dumps({"success": True, "message": "", "ranks": [rank]}).encode()
    found = checksums_from_reply(Reply(status=200, body=body))
    assert found.by_name == {"a": "00"}
    assert found.total == "ff"


def test_checksums_of_tensor_parallel_ranks_are_kept_apart_where_they_differ() -> None:
    ranks = [
        {"checksums": {"norm": "00", "shard": "0a"}, "per_gpu_checksum": "f0"},
        {"checksums": {"norm": "00", "shard": "0b"}, "per_gpu_checksum": "f1"},
    ]
    found = checksums_from_reply(Reply(status=200, body=json.dumps({"ranks": ranks}).encode()))
    assert found.by_name == {"norm": "00", "shard": "0a+0b"}
    assert found.total == "f0+f1"
    with pytest.raises(ServerUnavailableError, match="must be those of a rank, got none"):
        checksums_from_reply(Reply(status=200, body=b'{"ranks": []}'))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('{"error": {"message": "bad image"}}', "bad image"),
        ('{"success": false, "message": "no group"}', "no group"),
        ('{"object": "error", "message": "1 validation error"}', "1 validation error"),
        ("Flush cache failed.\n", "Flush cache failed."),
    ],
)
def test_the_reason_of_a_refusal_is_found_in_each_of_sglang_s_forms(body: str, text: str) -> None:
    assert refusal_text(Reply(status=400, body=body.encode())) == text


def test_a_bucket_of_unequal_lists_is_refused() -> None:
    with pytest.raises(ValueError, match="must have one length > 0, got 2, 1 and 2"):
        WeightBucket(names=["a", "b"], dtypes=["float32"], shapes=[[1], [2]])


@pytest.mark.parametrize("logprobs", [[], [[-1.0, 1, None], [-1.0, 2, None]]])
def test_an_ended_answer_without_all_its_logprobs_is_no_answer(logprobs: list[Any]) -> None:
    with pytest.raises(ServerUnavailableError, match="each of 3 tokens must have a log-prob"):
        decoded(answer(output_token_logprobs=logprobs, completion_tokens=3))


def test_a_cut_answer_keeps_the_tokens_that_have_logprobs() -> None:
    cut = decoded(
        answer(
            output_token_logprobs=[[-1.0, 7, None]],
            completion_tokens=2,
            finish_reason={"type": "abort"},
        )
    )
    assert (cut.output_ids, cut.stop_reason) == ((7,), "abort")


def test_a_list_of_versions_that_is_too_short_is_no_answer() -> None:
    with pytest.raises(ServerUnavailableError, match="2 tokens must have a version, got 1"):
        decoded(
            answer(
                output_token_logprobs=[[-1.0, 1, None], [-1.0, 2, None]],
                output_token_weight_versions=["3"],
            )
        )
