"""Contract of weight updates that are wrong: refused, and nothing changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from awrl_rollout import (
    ServerRefusedError,
    SGLangClient,
    WeightBucket,
)
from serving import ServerUnderTest, named_weights, perturb, run_bounded
from webrl.embedded.parity import page_png, page_request
from webrl.embedded.rank_zero import RankZero, join, publish
from webrl.policy import PolicyProcessor

pytestmark = pytest.mark.usefixtures("server_with_model", "first_weights_again")
SEEN_PAGE = page_png(31)


def test_a_group_that_does_not_exist_is_refused(server: ServerUnderTest) -> None:
    async def scenario() -> None:
        async with SGLangClient(server.url) as client:
            with pytest.raises(ServerRefusedError):
                await client.weights.leave("nobody")

    run_bounded(scenario)


@pytest.mark.distributed
def test_a_name_that_is_joined_already_is_refused(
    server: ServerUnderTest, rank_zero: RankZero, unused_port: Callable[[], int]
) -> None:
    if not server.is_embedded:
        pytest.skip("SGLang waits for rank 0 before it looks at the name")

    async def scenario() -> None:
        async with SGLangClient(server.url) as client:
            await join(client, rank_zero)
            with pytest.raises(ServerRefusedError, match="which was joined already"):
                await client.weights.join(
                    master_address="127.0.0.1",
                    master_port=unused_port(),
                    rank_offset=1,
                    world_size=2,
                    group_name=rank_zero.group_name,
                    backend="gloo",
                )
            await client.weights.leave(rank_zero.group_name)

    run_bounded(scenario)


WRONG: dict[str, Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]] = {
    "unknown name": lambda weights: {"model.nothing.weight": next(iter(weights.values()))},
    "wrong shape": lambda weights: {
        name: weight.reshape(-1)[:-1] for name, weight in list(weights.items())[:1]
    },
    "wrong dtype": lambda weights: {
        name: weight.double() for name, weight in list(weights.items())[:1]
    },
    "good and bad": lambda weights: {
        **{name: weight + 1 for name, weight in list(weights.items())[:3]},
        "model.nothing.weight": torch.zeros(2),
    },
}


@pytest.mark.distributed
@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("is_flattened", [True, False])
def test_a_broadcast_that_does_not_fit_is_refused_and_changes_nothing(
    server: ServerUnderTest,
    reference: torch.nn.Module,
    rank_zero: RankZero,
    kind: str,
    is_flattened: bool,
) -> None:
    if not server.is_embedded:
        pytest.skip("see the next test")

    async def scenario() -> None:
        async with SGLangClient(server.url) as client:
            before = await client.weights.checksums()
            await join(client, rank_zero)
            wrong = WRONG[kind](named_weights(reference))
            with pytest.raises(ServerRefusedError) as caught:
                await publish(client, rank_zero, wrong, is_flattened=is_flattened, weight_version=9)
            message = str(caught.value)
            assert next(iter(wrong)) in message or "model.nothing.weight" in message
            assert await client.weights.checksums() == before
            assert await client.weights.version() != 9
            good = perturb(reference, only="norm")
            await publish(client, rank_zero, good, is_flattened=is_flattened, weight_version=10)
            assert await client.weights.version() == 10
            await client.weights.leave(rank_zero.group_name)

    run_bounded(scenario)


@pytest.mark.distributed
@pytest.mark.parametrize("kind", WRONG)
def test_sglang_refuses_a_wrong_shape_and_takes_every_other_broadcast(
    server: ServerUnderTest, reference: torch.nn.Module, rank_zero: RankZero, kind: str
) -> None:
    """Unknown names are skipped without a word and dtypes cast: the sender must get them right."""
    if server.is_embedded:
        pytest.skip("see the test before")

    async def scenario() -> None:
        async with SGLangClient(server.url) as client:
            await join(client, rank_zero)
            wrong = WRONG[kind](named_weights(reference))
            refusals: list[Exception] = []
            try:
                await publish(client, rank_zero, wrong, is_flattened=True, weight_version=9)
            except ServerRefusedError as error:
                refusals.append(error)
            assert len(refusals) == (kind == "wrong shape")
            assert (await client.weights.version() == 9) == (not refusals)
            await client.weights.leave(rank_zero.group_name)

    run_bounded(scenario)


@pytest.mark.distributed
def test_a_sender_that_vanishes_costs_the_update_and_not_the_server(
    server: ServerUnderTest, rank_zero: RankZero, processor: PolicyProcessor
) -> None:
    if not server.is_embedded:
        pytest.skip("SGLang waits for torch's default timeout of half an hour")

    request = page_request(processor, [SEEN_PAGE])

    async def scenario() -> None:
        async with SGLangClient(server.url) as client:
            before = await client.weights.checksums()
            await join(client, rank_zero)
            rank_zero.close()
            bucket = WeightBucket(names=["lm_head.weight"], dtypes=["float32"], shapes=[[4, 4]])
            with pytest.raises(ServerRefusedError, match="The group is dropped"):
                await client.weights.receive(
                    bucket, group_name=rank_zero.group_name, weight_version=5
                )
            assert await client.weights.checksums() == before
            assert (await client.generate(request)).versions[0] != 5

    run_bounded(scenario)
