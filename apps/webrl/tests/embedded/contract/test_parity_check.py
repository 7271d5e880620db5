"""The parity check that `doctor` runs against a live server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from awrl_rollout import SGLangClient
from serving import ServerUnderTest
from webrl.embedded.parity import check_parity


@pytest.mark.distributed
@pytest.mark.usefixtures("server_with_model")
def test_every_case_is_within_rounding_and_the_weights_are_back(
    server: ServerUnderTest, unused_port: Callable[[], int]
) -> None:
    async def scenario() -> None:
        async with SGLangClient(server.url) as client:
            cases = await check_parity(
                client,
                str(server.model_path),
                dtype=server.dtype,
                broadcast_port=unused_port(),
            )
            again = await check_parity(client, str(server.model_path), dtype=server.dtype)
        names = [case.name for case in cases if not case.name.startswith("long answer")]
        assert names == [
            "text only",
            "one image",
            "several images",
            "temperature 0.6",
            "new image after an update",
            "seen image after an update",
            "seen image after tensors",
            "seen image after a bucket",
        ]
        for case in (*cases, *again):
            assert case.num_tokens == (96 if case.name.startswith("long") else 16)
            assert case.max_difference < server.tolerance, case

    asyncio.run(scenario())
