"""What the contract tests of weight updates share."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator

import pytest
from awrl_rollout import SGLangClient
from serving import ServerUnderTest
from webrl.embedded.rank_zero import RankZero

GROUP_NUMBERS = itertools.count()


@pytest.fixture
def server_with_model(server: ServerUnderTest) -> ServerUnderTest:
    """The server, for what the one without a model has in common with the embedded one or lacks."""
    if not server.has_model:
        pytest.skip("the server without a model")
    return server


@pytest.fixture
def first_weights_again(server: ServerUnderTest) -> Iterator[None]:
    """Give the server its first weights back after the test."""
    yield

    async def restore() -> None:
        async with SGLangClient(server.url) as client:
            await client.continue_generation()
            await client.abort_all()
            await client.weights.load(str(server.model_path), weight_version=0)
            await client.flush_cache()

    asyncio.run(restore())


@pytest.fixture
def rank_zero(unused_port: Callable[[], int]) -> Iterator[RankZero]:
    """A sender whose group has a name and a port of its own."""
    name = f"contract-{next(GROUP_NUMBERS)}"
    with RankZero(port=unused_port(), group_name=name) as sender:
        yield sender
