"""Contract of the wire: bodies that are wrong, and fields that answers must have."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest
from serving import ServerUnderTest
from webrl.embedded.parity import as_base64, page_png
from webrl.policy import PolicyProcessor

pytestmark = pytest.mark.usefixtures("server_with_model")


def post(server: ServerUnderTest, path: str, body: bytes | Mapping[str, Any]) -> tuple[int, str]:
    async def run() -> tuple[int, str]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        async with (
            asyncio.timeout(120),
            aiohttp.ClientSession() as session,
            session.post(f"{server.url}{path}", data=data, headers=headers) as response,
        ):
            return response.status, await response.text()

    return asyncio.run(run())


def good_body(processor: PolicyProcessor, **changes: Any) -> dict[str, Any]:
    bias = dict.fromkeys(map(str, processor.masked_token_ids), -1e9)
    fields: dict[str, Any] = {
        "input_ids": processor.build_prompt("click", [], 1),
        "image_data": [as_base64(page_png(1))],
        "sampling_params": {"max_new_tokens": 3, "logit_bias": bias},
        "return_logprob": True,
    }
    return {**fields, **changes}


def test_an_answer_has_the_fields_that_clients_read(
    server: ServerUnderTest, processor: PolicyProcessor
) -> None:
    status, text = post(server, "/generate", good_body(processor, rid="my-id"))
    assert status == 200
    answer = json.loads(text)
    meta = answer["meta_info"]
    assert meta["id"] == "my-id"
    assert meta["finish_reason"]["type"] in ("stop", "length")
    assert isinstance(meta["weight_version"], str)
    assert meta["completion_tokens"] == len(answer["output_ids"])
    assert meta["prompt_tokens"] > len(processor.build_prompt("click", [], 1))
    assert [entry[1] for entry in meta["output_token_logprobs"]] == answer["output_ids"]
    assert all(entry[0] <= 0 for entry in meta["output_token_logprobs"])


def test_an_image_may_be_a_data_uri_or_a_single_string(
    server: ServerUnderTest, processor: PolicyProcessor
) -> None:
    plain = as_base64(page_png(1))
    params = {
        **good_body(processor)["sampling_params"],
        "temperature": 0.0,
    }
    answers = [
        json.loads(post(server, "/generate", body)[1])["output_ids"]
        for body in (
            good_body(processor, sampling_params=params),
            good_body(processor, sampling_params=params, image_data=plain),
            good_body(
                processor, sampling_params=params, image_data=[f"data:image/png;base64,{plain}"]
            ),
        )
    ]
    assert answers[0] == answers[1] == answers[2]


def test_a_stream_brings_each_token_once_and_ends(
    server: ServerUnderTest, processor: PolicyProcessor
) -> None:
    status, text = post(server, "/generate", good_body(processor, stream=True))
    assert status == 200
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    lengths = [len(chunk["meta_info"]["output_token_logprobs"]) for chunk in chunks]
    assert lengths == sorted(lengths)
    assert chunks[-1]["meta_info"]["finish_reason"]["type"] in ("stop", "length")
    assert lengths[-1] == chunks[-1]["meta_info"]["completion_tokens"]


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'{"input_ids": "abc"}', b'{"input_ids": [1.5]}', b"\xff\xfe"],
)
def test_a_body_that_is_no_request_is_refused(server: ServerUnderTest, body: bytes) -> None:
    status, text = post(server, "/generate", body)
    assert status == 400
    assert "message" in text


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": -1.0},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"max_new_tokens": -1},
        {"top_k": 0},
        {"logit_bias": {"99999999": -1.0}},
    ],
)
def test_a_sampling_parameter_that_breaks_its_rule_is_refused(
    server: ServerUnderTest, processor: PolicyProcessor, params: dict[str, Any]
) -> None:
    body = good_body(processor, sampling_params={"max_new_tokens": 2, **params})
    status, _ = post(server, "/generate", body)
    assert status == 400


@pytest.mark.parametrize("image", ["not base64 !!", as_base64(b"GIF89a"), ""])
def test_an_image_that_can_not_be_read_is_refused(
    server: ServerUnderTest, processor: PolicyProcessor, image: str
) -> None:
    status, _ = post(server, "/generate", good_body(processor, image_data=[image]))
    assert status >= 400
    status, _ = post(server, "/generate", good_body(processor))
    assert status == 200


def test_a_damaged_png_is_refused_and_the_server_goes_on(
    server: ServerUnderTest, processor: PolicyProcessor
) -> None:
    png = page_png(2)
    for cut in (20, 40, len(png) // 2):
        body = good_body(processor, image_data=[as_base64(png[:cut])])
        status, _ = post(server, "/generate", body)
        assert status >= 400
    flipped = bytearray(png)
    flipped[len(png) // 2] ^= 0xFF
    post(server, "/generate", good_body(processor, image_data=[as_base64(bytes(flipped))]))
    status, _ = post(server, "/generate", good_body(processor))
    assert status == 200


def test_an_id_that_is_in_flight_is_refused(
    server: ServerUnderTest, processor: PolicyProcessor
) -> None:
    async def run() -> list[int]:
        body = good_body(processor, rid="twice")
        body["sampling_params"] = {"max_new_tokens": 200, "ignore_eos": True}
        body["sampling_params"]["logit_bias"] = good_body(processor)["sampling_params"][
            "logit_bias"
        ]
        async with asyncio.timeout(120), aiohttp.ClientSession() as session:

            async def send() -> int:
                async with session.post(f"{server.url}/generate", json=body) as response:
                    return response.status

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(send()) for _ in range(2)]
            return sorted(task.result() for task in tasks)

    assert asyncio.run(run()) == [200, 400]


@pytest.mark.parametrize("path", ["/update_weights_from_distributed", "/init_weights_update_group"])
def test_a_weight_call_without_its_fields_is_refused(server: ServerUnderTest, path: str) -> None:
    status, _ = post(server, path, {})
    assert status == 400


def test_a_pause_of_an_unknown_mode_is_refused(server: ServerUnderTest) -> None:
    status, _ = post(server, "/pause_generation", {"mode": "gently"})
    assert status == 400


def test_a_field_that_would_be_ignored_is_refused_by_name(
    server: ServerUnderTest, processor: PolicyProcessor
) -> None:
    if not server.is_embedded:
        pytest.skip("SGLang has more fields")
    status, text = post(server, "/generate", good_body(processor, lora_path="x"))
    assert status == 400
    assert "lora_path" in text


def test_a_body_beyond_the_limit_is_refused(server: ServerUnderTest) -> None:
    if not server.is_embedded:
        pytest.skip("SGLang has no limit")
    status, _ = post(server, "/generate", b" " * (65 * 2**20))
    assert status == 413


def test_an_unknown_address_is_not_found(server: ServerUnderTest) -> None:
    status, _ = post(server, "/nothing_here", {})
    assert status == 404
