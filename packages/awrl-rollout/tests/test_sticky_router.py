"""An episode stays on its server."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from awrl_rollout import (
    GenerateRequest,
    InterruptibleGenerator,
    ServerUnavailableError,
    StickyRouter,
    VirtualClock,
)
from rollout_doubles import Cut, FailedAttempt, ScriptedClient

KEYS = [f"{group}/{member}" for group in range(100) for member in range(4)]


def servers(count: int) -> dict[str, ScriptedClient]:
    return {f"http://10.0.0.{index}:30000": ScriptedClient() for index in range(count)}


def router_of(clients: dict[str, ScriptedClient]) -> StickyRouter:
    return StickyRouter(clients, connect=clients.__getitem__)


def request(episode_id: str) -> GenerateRequest:
    return GenerateRequest(input_ids=(1,), max_new_tokens=5, episode_id=episode_id)


def test_every_turn_and_every_resubmission_of_an_episode_goes_to_one_server() -> None:
    clients = {
        name: ScriptedClient([Cut(num_tokens=2)] * 9, end_token_id=-1) for name in servers(4)
    }
    router = StickyRouter(clients, connect=clients.__getitem__, clock=VirtualClock())

    async def episode() -> None:
        generator = InterruptibleGenerator(router)
        for _ in range(3):
            await generator.generate(request("7/0"))

    asyncio.run(episode())
    counts = {name: len(client.attempts) for name, client in clients.items()}
    assert counts == {**dict.fromkeys(clients, 0), router.route("7/0"): 9}


def test_keys_spread_evenly_and_siblings_can_be_kept_together() -> None:
    router = router_of(servers(4))
    spread = Counter(router.route(key) for key in KEYS)
    assert len(spread) == 4
    assert min(spread.values()) > 400 / 4 / 2
    clients = servers(4)
    router = StickyRouter(
        clients, connect=clients.__getitem__, key=lambda item: item.episode_id.partition("/")[0]
    )

    async def group() -> None:
        for member in range(4):
            await router.generate(request(f"5/{member}"))

    asyncio.run(group())
    assert sorted(len(client.attempts) for client in clients.values()) == [0, 0, 0, 4]


def test_a_server_that_leaves_moves_only_its_own_keys() -> None:
    clients = servers(5)
    router = router_of(clients)
    before = {key: router.route(key) for key in KEYS}
    gone, _ = clients.popitem()
    router.set_servers(clients)
    moved = {key for key in KEYS if router.route(key) != before[key]}
    assert moved == {key for key in KEYS if before[key] == gone}
    router.set_servers({})
    with pytest.raises(ServerUnavailableError, match="servers must be at least one"):
        router.route("7/0")


def test_a_server_without_an_answer_rests_and_the_episode_goes_on_elsewhere() -> None:
    clock = VirtualClock()
    names = list(servers(2))
    home = router_of(servers(2)).route("7/0")
    other = next(name for name in names if name != home)
    clients = {name: ScriptedClient([FailedAttempt()], end_token_id=-1) for name in names}
    router = StickyRouter(clients, connect=clients.__getitem__, rest_s=30.0, clock=clock)

    async def main() -> None:
        generator = InterruptibleGenerator(router, sleep=clock.sleep)
        await generator.generate(request("7/0"))
        # Both failed once; when all rest, none does, so the third attempt went home again.
        assert (len(clients[home].attempts), len(clients[other].attempts)) == (2, 1)
        clients[other].attempts.clear()
        await clock.sleep(31.0)
        assert router.route("7/0") == home

    clock.run(main())


def test_closing_reaches_every_client_though_one_fails() -> None:
    closed: list[str] = []

    class FailingClient(ScriptedClient):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        async def aclose(self) -> None:
            closed.append(self.name)
            if self.name == "a":
                raise OSError("boom")

    async def main() -> None:
        router = StickyRouter(["a", "b"], connect=FailingClient)
        with pytest.raises(OSError, match="boom"):
            await router.aclose()
        await router.aclose()

    VirtualClock().run(main())
    assert closed == ["a", "b"]
