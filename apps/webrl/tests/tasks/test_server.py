"""The task server: what it serves, what it refuses, bursts of connections."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from webrl.tasks import TaskServer


async def _get(url: str) -> tuple[int, str, bytes]:
    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        return answer.status, answer.content_type, await answer.read()


def test_serves_pages_of_the_distribution() -> None:
    async def main() -> tuple[int, str, bytes]:
        async with TaskServer() as server:
            return await _get(server.base_url + "/miniwob/click-test-2.html")

    status, kind, body = asyncio.run(main())
    assert (status, kind) == (200, "text/html")
    assert b"genProblem" in body


@pytest.mark.parametrize(
    "path", ["/secret.txt", "/../secret.txt", "/%2e%2e/secret.txt", "/sub", "/"]
)
def test_nothing_outside_the_folder_is_served(tmp_path: Path, path: str) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("secret")

    async def main() -> int:
        async with TaskServer(root=root) as server:
            host, port = server.base_url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
            assert b"secret" not in answer
            return int(answer.split()[1])

    assert asyncio.run(main()) == 404


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")

    async def main() -> tuple[int, str, bytes]:
        async with TaskServer(root=root) as server:
            return await _get(server.base_url + "/link.txt")

    assert asyncio.run(main())[0] == 404


def test_a_burst_of_connections_is_accepted_whole(tmp_path: Path) -> None:
    # With a backlog of 5 the kernel drops most of these and clients retry after a second or more.
    (tmp_path / "page.html").write_text("<p>page</p>")

    async def main() -> tuple[int, list[int]]:
        async with TaskServer(root=tmp_path) as server:
            host, port = server.base_url.removeprefix("http://").split(":")
            before = _listen_drops()
            streams = [await asyncio.open_connection(host, int(port)) for _ in range(4)]
            async with asyncio.TaskGroup() as group:
                opened = [
                    group.create_task(asyncio.open_connection(host, int(port))) for _ in range(256)
                ]
            streams += [task.result() for task in opened]
            statuses: list[int] = []
            for reader, writer in streams:
                writer.write(b"GET /page.html HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                statuses.append(int((await reader.read()).split()[1]))
                writer.close()
            return _listen_drops() - before, statuses

    drops, statuses = asyncio.run(main())
    assert drops == 0
    assert statuses == [200] * 260


def test_routes_answer_before_files(tmp_path: Path) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text=f"route {request.path}")

    async def main() -> tuple[int, str, bytes]:
        async with TaskServer(root=tmp_path, routes={"/fault/": answer}) as server:
            return await _get(server.base_url + "/fault/x")

    assert asyncio.run(main()) == (200, "text/plain", b"route /fault/x")


def test_a_request_that_is_never_answered_ends_with_its_client() -> None:
    async def main() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def never(_: web.BaseRequest) -> web.StreamResponse:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            raise AssertionError("nobody sets the event")

        async with TaskServer(routes={"/never": never}) as server:
            async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as tasks:
                asked = tasks.create_task(http.get(server.base_url + "/never").__aenter__())
                await begun.wait()
                asked.cancel()
            async with asyncio.timeout(30):
                await ended.wait()

    asyncio.run(main())


def test_the_address_needs_a_running_server(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="base_url must be read while the server runs"):
        TaskServer(root=tmp_path).base_url  # noqa: B018


def _listen_drops() -> int:
    """Return how many connection attempts the kernel dropped because of full backlogs."""
    lines = Path("/proc/net/netstat").read_text().splitlines()
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        if names.startswith("TcpExt:"):
            table = dict(zip(names.split()[1:], map(int, values.split()[1:]), strict=True))
            return table["ListenOverflows"] + table["ListenDrops"]
    raise AssertionError("the kernel reports no TcpExt counters")
