"""The completion callback, over real loopback HTTP."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from awrl_rollout import (
    CallbackNotifier,
    CallbackServer,
    EpisodeRecord,
    LocalWorker,
    Outcome,
    RolloutController,
    WorkflowExecutor,
)
from awrl_rollout.testing import endless_groups, scripted_workflow
from awrl_staleness import StalenessConfig, StalenessManager

RECORD = EpisodeRecord(episode_id="e", group_id="g", outcome=Outcome.SUCCESS)


def test_a_callback_is_idempotent_and_names_its_worker() -> None:
    async def main() -> None:
        seen: list[str] = []
        async with CallbackServer(seen.append) as server:
            notifier = CallbackNotifier(server.url, token=server.token, worker="w7")
            await notifier([RECORD])
            await notifier([RECORD])
            await notifier.aclose()
            await notifier.aclose()
            assert (seen, notifier.num_failed, server.num_accepted) == (["w7", "w7"], 0, 2)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("token", "body", "status"),
    [
        ("wrong", '{"worker": "w", "episode_ids": []}', 401),
        ("", '{"worker": "w", "episode_ids": []}', 401),
        (None, '{"worker": "w", "episode_ids": [], "extra": 1}', 400),
        (None, "not json", 400),
    ],
)
def test_a_callback_without_token_or_form_is_refused(
    token: str | None, body: str, status: int
) -> None:
    async def main() -> None:
        seen: list[str] = []
        async with CallbackServer(seen.append) as server, aiohttp.ClientSession() as session:
            sent = server.token if token is None else token
            headers = {"Authorization": f"Bearer {sent}"} if sent else {}
            async with session.post(server.url, data=body, headers=headers) as answer:
                assert answer.status == status
            assert (seen, server.num_refused) == ([], 1)

    asyncio.run(main())


@pytest.mark.parametrize("token", ["", " "])
def test_a_blank_token_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="token must not be blank"):
        CallbackServer(lambda name: None, token=token, host="0.0.0.0")


def test_a_server_makes_itself_a_token_and_listens_on_loopback() -> None:
    async def main() -> str:
        async with CallbackServer(lambda name: None) as server:
            assert len(server.token) >= 32
            return server.url

    assert asyncio.run(main()).startswith("http://127.0.0.1:")


def test_a_callback_that_cannot_be_delivered_is_counted_and_raises_nothing() -> None:
    async def main() -> None:
        async with CallbackServer(lambda name: None) as server:
            url = server.url
        notifier = CallbackNotifier(url, token="t", worker="w", timeout_s=1.0)
        await notifier([RECORD])
        await notifier.aclose()
        assert notifier.num_failed == 1

    asyncio.run(main())


@pytest.mark.requirement("http-callback")
def test_a_batch_fills_through_the_callback_alone() -> None:
    async def main() -> None:
        manager = StalenessManager(
            StalenessConfig(max_concurrent=4, consumer_batch_size=4, max_off_policyness=1)
        )
        notified: list[str] = []

        def notify(name: str) -> None:
            notified.append(name)
            controllers[0].notify(name)

        controllers: list[RolloutController] = []
        async with CallbackServer(notify) as server:
            notifier = CallbackNotifier(server.url, token=server.token, worker="w")
            workflow = scripted_workflow()
            async with WorkflowExecutor(
                workflow, num_slots=4, name="w", on_finished=notifier
            ) as executor:
                controller = RolloutController(
                    [WorkerWithoutSubscription(executor)], manager, source=endless_groups(2)
                )
                controllers.append(controller)
                async with controller:
                    for version in (1, 2):
                        batch = await controller.prepare_batch(4, timeout_s=30)
                        assert batch.num_episodes == 4
                        controller.advance(version)
            await notifier.aclose()
        assert notified

    asyncio.run(main())


class WorkerWithoutSubscription:
    """Forwards everything but `subscribe`, as an adapter of a remote worker does."""

    def __init__(self, executor: WorkflowExecutor) -> None:
        inner = LocalWorker(executor)
        self.name = inner.name
        self.num_slots = inner.num_slots
        self.submit = inner.submit
        self.take_finished = inner.take_finished
        self.cancel = inner.cancel
        self.pause = inner.pause
        self.resume = inner.resume
        self.statistics = inner.statistics


def test_an_ipv6_address_stands_in_brackets() -> None:
    assert CallbackServer(print, host="::1", port=80).url.startswith("http://[::1]:80/")
