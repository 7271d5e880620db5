"""Restarts of servers, with supervisors and a publisher that do as a test says."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
from awrl_trainer import PublishError, PublishReport, WeightPublisher
from rich.console import Console
from webrl.cluster.scheduler import WorkerHandle
from webrl.errors import RunFailedError
from webrl.launch.system import System
from webrl.records.live_view import LiveView
from webrl.run.server_recovery import ServerRecovery
from webrl.servers.server_actor import ServerSpec
from webrl.training.publishing import SGLangReceiver


class Remote:
    """A method of an actor."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call

    def remote(self, *args: object) -> Coroutine[Any, Any, Any]:
        async def answer() -> Any:
            return self._call()

        return answer()


class Supervisor:
    """An actor whose server dies when told to."""

    def __init__(self) -> None:
        self.death: str | None = None
        self.num_starts = 0
        self.check = Remote(lambda: self.death)
        self.start = Remote(self._start)

    def _start(self) -> str:
        self.num_starts += 1
        self.death = None
        return f"http://127.0.0.1:{self.num_starts}"


class Publisher:
    """Fails once; its rejoin waits until a test lets it go on."""

    def __init__(self) -> None:
        self.quarantined: dict[str, str] = {}
        self.published: list[int] = []
        self.may_rejoin = asyncio.Event()
        self.is_rejoining = asyncio.Event()
        self.fails_next = False

    async def publish(self, version: int) -> PublishReport:
        if self.fails_next:
            self.fails_next = False
            self.quarantined["rollout/0"] = "pause: no answer"
            raise PublishError("nobody took it", phase="pause", receivers=("rollout/0",))
        self.published.append(version)
        return cast("PublishReport", None)

    async def rejoin(self, receiver: SGLangReceiver) -> None:
        self.is_rejoining.set()
        await self.may_rejoin.wait()
        self.quarantined.pop(receiver.name)


class Worker:
    """A rollout worker that remembers what it was told."""

    def __init__(self, calls: list[str]) -> None:
        for name in ("pause", "drained", "set_servers", "resume"):
            setattr(self, name, Told(calls, name))


class Told:
    """A method that remembers its call."""

    def __init__(self, calls: list[str], name: str) -> None:
        self._calls, self._name = calls, name

    async def remote(self, *args: object) -> None:
        self._calls.append(self._name)


class WindowPublisher(Publisher):
    """Takes a known time, or refuses."""

    def __init__(self, calls: list[str]) -> None:
        super().__init__()
        self._calls = calls

    async def publish(self, version: int) -> PublishReport:
        self._calls.append("publish")
        if self.fails_next:
            raise RuntimeError("the ranks are gone")
        parts = dict.fromkeys(("pause_s", "resume_s", "window_s"), 1.0)
        rest = dict.fromkeys(
            ("handshake_s", "gather_s", "broadcast_s", "switch_s", "verify_s"), 0.0
        )
        return PublishReport(
            version=version, receivers=(), quarantined={}, num_bytes=0, **parts, **rest
        )


def recovery_of(
    supervisor: Supervisor, weights: Publisher, backend: str = "embedded"
) -> ServerRecovery:
    system = System(
        scheduler=cast("Any", None),
        pixels=cast("Any", None),
        processor=cast("Any", None),
        server_spec=ServerSpec(backend=backend, model_path="p"),
        start_timeout_s=9.0,
        log_dir=Path(),
    )
    system.servers = [WorkerHandle(role="rollout", rank=0, actor=supervisor)]
    system.server_urls = ["http://127.0.0.1:9"]
    system.clients = [system.network.client(system.server_urls[0])]
    view = LiveView(Console(file=io.StringIO()), title="t")
    publisher = cast("WeightPublisher", weights)
    return ServerRecovery(system, publisher, view, version=3, max_restarts=1)


def test_a_server_lost_in_a_publish_is_restarted_once_though_two_look_after_it() -> None:
    async def main() -> tuple[int, list[int]]:
        supervisor, weights = Supervisor(), Publisher()
        recovery = recovery_of(supervisor, weights)
        weights.fails_next = True

        async def publish() -> None:
            async with recovery.lock:
                await recovery.publish(4)

        async with asyncio.TaskGroup() as group:
            group.create_task(publish())
            await weights.is_rejoining.wait()
            # The supervisor's loop looks while the server is on its way back.
            looked = group.create_task(recovery.restore())
            for _ in range(20):
                await asyncio.sleep(0)
            weights.may_rejoin.set()
        assert looked.done()
        return supervisor.num_starts, weights.published

    assert asyncio.run(main()) == (1, [4])


def test_a_restarted_server_gets_the_newest_weights_at_once() -> None:
    async def main() -> tuple[bool, list[int], bool]:
        supervisor, weights = Supervisor(), Publisher()
        weights.may_rejoin.set()
        recovery = recovery_of(supervisor, weights)
        supervisor.death = "ended with code -9"
        weights.quarantined["rollout/0"] = "broadcast: no answer"
        return await recovery.restore(), weights.published, await recovery.restore()

    assert asyncio.run(main()) == (True, [3], False)


def test_restarts_have_a_limit() -> None:
    async def main() -> None:
        supervisor, weights = Supervisor(), Publisher()
        weights.may_rejoin.set()
        recovery = recovery_of(supervisor, weights)
        for _ in range(2):
            supervisor.death = "ended with code -9"
            weights.quarantined["rollout/0"] = "broadcast: no answer"
            await recovery.restore()

    with pytest.raises(
        RunFailedError, match=r"recover.max_restarts = 1 restarts are used up: ended"
    ):
        asyncio.run(main())


@pytest.mark.parametrize("backend", ["sglang", "embedded"])
def test_workers_know_the_new_addresses_before_they_ask_again(backend: str) -> None:
    async def main() -> list[str]:
        calls: list[str] = []
        supervisor, weights = Supervisor(), WindowPublisher(calls)
        weights.may_rejoin.set()
        recovery = recovery_of(supervisor, weights, backend=backend)
        recovery.workers = [WorkerHandle(role="rollout-worker", rank=0, actor=Worker(calls))]
        supervisor.death = "ended with code -9"
        weights.quarantined["rollout/0"] = "broadcast: no answer"
        await recovery.restore()
        return calls

    calls = asyncio.run(main())
    assert calls[0] == "pause"
    assert calls[-3:] == ["publish", "set_servers", "resume"]
    assert calls.count("resume") == 1


@pytest.mark.parametrize("fails", [False, True])
def test_workers_hold_requests_back_while_sglang_is_updated(fails: bool) -> None:
    async def main() -> tuple[list[str], PublishReport | None]:
        calls: list[str] = []
        weights = WindowPublisher(calls)
        weights.fails_next = fails
        recovery = recovery_of(Supervisor(), weights, backend="sglang")
        worker = WorkerHandle(role="rollout-worker", rank=0, actor=Worker(calls))
        recovery.workers = [worker]
        try:
            return calls, await recovery.publish(4)
        except RuntimeError:
            return calls, None

    calls, report = asyncio.run(main())
    assert calls == ["pause", "drained", "publish", "resume"]
    assert (report is None) == fails
    if report is not None:
        added = (report.pause_s - 1.0) + (report.resume_s - 1.0)
        assert added > 0
        assert report.window_s == pytest.approx(1.0 + added)
