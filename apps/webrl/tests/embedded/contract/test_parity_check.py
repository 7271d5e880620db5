"""The parity check that `doctor` runs against a live server."""

from __future__ import annotations

import asyncio

from awrl_rollout import SGLangClient
from webrl.embedded.parity import check_parity
from webrl.embedded.testing import ServerUnderTest


def test_every_case_is_within_rounding_and_the_weights_are_back(server: ServerUnderTest) -> None:
    async def scenario() -> None:
        async with SGLangClient(server.url) as client:
            cases = await check_parity(client, str(server.model_path), dtype=server.dtype)
            again = await check_parity(client, str(server.model_path), dtype=server.dtype)
        assert [case.name for case in cases][-1] == "seen image after an update"
        for case in (*cases, *again):
            assert case.num_tokens == 16
            assert case.max_difference < server.tolerance, case

    asyncio.run(scenario())
