"""The proxy between pages and the network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest
from aiohttp import web
from webrl.browser.guard import GuardProxy, is_public
from webrl.browser.perform import refusal
from webrl.tasks import TaskServer


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1%eth0",
        "fd00::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "no address",
    ],
)
def test_addresses_that_pages_never_reach(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.215.14", "2606:4700::1111", "64:ff9b::101:101"]
)
def test_addresses_that_pages_may_reach(address: str) -> None:
    assert is_public(address)


async def _through(
    guard: GuardProxy, url: str, headers: dict[str, str] | None = None
) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession(trust_env=False) as http,
        http.get(url, proxy=guard.url, headers=headers) as answer,
    ):
        return answer.status, await answer.text()


async def _echo(request: web.BaseRequest) -> web.StreamResponse:
    return web.Response(text=f"{request.path_qs} {sorted(request.headers)}")


def test_a_private_address_is_refused_before_anything_is_sent() -> None:
    reached: list[str] = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        reached.append(request.path)
        return web.Response(text="secret")

    async def main() -> tuple[int, str, int]:
        async with TaskServer(routes={"/": answer}) as server, GuardProxy() as guard:
            status, text = await _through(guard, server.base_url + "/private")
            return status, text, guard.num_refused

    assert asyncio.run(main()) == (403, "address refused\n", 1)
    assert reached == []


def test_a_name_with_one_private_address_is_refused() -> None:
    async def resolver(host: str, port: int) -> Sequence[str]:
        return ["1.1.1.1", "10.0.0.1"]

    async def main() -> int:
        async with GuardProxy(resolver=resolver) as guard:
            return (await _through(guard, "http://rebinding.example/"))[0]

    assert asyncio.run(main()) == 403


def test_an_allowed_request_goes_through_without_proxy_headers() -> None:
    async def main() -> tuple[int, str]:
        async with (
            TaskServer(routes={"/": _echo}) as server,
            GuardProxy(allow=lambda address: address == "127.0.0.1") as guard,
        ):
            return await _through(guard, server.base_url + "/a?b=c", {"Proxy-Secret": "x"})

    status, text = asyncio.run(main())
    assert status == 200
    assert text.startswith("/a?b=c ")
    assert "Proxy-Secret" not in text


def test_a_tunnel_is_checked_like_a_request() -> None:
    async def connect(guard: GuardProxy, target: str) -> bytes:
        port = int(guard.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        line = await reader.readline()
        writer.close()
        return line

    async def main() -> tuple[bytes, bytes, bytes]:
        async with TaskServer() as server, GuardProxy() as guard:
            private = await connect(guard, server.base_url.removeprefix("http://"))
            mapped = await connect(guard, "[::ffff:127.0.0.1]:443")
            return private, mapped, await connect(guard, "nonsense")

    private, mapped, nonsense = asyncio.run(main())
    assert b"403" in private
    assert b"403" in mapped
    assert b"400" in nonsense


def test_an_address_that_nobody_has_is_a_bad_gateway() -> None:
    async def resolver(host: str, port: int) -> Sequence[str]:
        raise OSError("no such name")

    async def main() -> int:
        async with GuardProxy(resolver=resolver) as guard:
            return (await _through(guard, "http://nowhere.example/"))[0]

    assert asyncio.run(main()) == 502


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file:///etc/passwd", "must start with http"),
        ("FILE:///etc/passwd", "must start with http"),
        (" file:///etc/passwd", "must start with http"),
        ("java\nscript:alert(1)", "control characters"),
        ("javascript:alert(1)", "must start with http"),
        ("data:text/html,x", "must start with http"),
        ("chrome://crash", "must start with http"),
        ("view-source:http://a.example/", "must start with http"),
        ("about:blank", "must start with http"),
        ("example.org", "must start with http"),
        ("http://", "must name a host"),
        ("http://user:word@a.example/", "user name or password"),
        ("http://a.example:99999/", "well formed"),
        ("http://[::1/", "well formed"),
        ("http://a.example:0/", "port must be > 0"),
    ],
)
def test_addresses_that_a_policy_may_not_open(url: str, reason: str) -> None:
    assert reason in str(refusal(url))


@pytest.mark.parametrize("url", ["http://a.example/", "HTTPS://a.example:8443/x?y#z"])
def test_addresses_that_a_policy_may_open(url: str) -> None:
    assert refusal(url) is None


_GET = b"GET http://127.0.0.1:%d/ HTTP/1.1\r\nHost: site\r\n\r\n"


class _Stubborn:
    """A site that keeps every connection open, whatever it is asked for."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.num_open = 0
        self.closed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_open += 1
        with suppress(asyncio.IncompleteReadError):
            while True:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nKeep-Alive: 9\r\nContent-Length: 1\r\n\r\nx")
        self.num_open -= 1
        self.closed.set()
        writer.close()


@asynccontextmanager
async def _stubborn_site() -> AsyncGenerator[tuple[_Stubborn, int]]:
    site = _Stubborn()
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0)
    async with server:
        yield site, server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("is_tunnel", [False, True])
@pytest.mark.parametrize("first_to_go", ["page", "proxy"])
def test_a_connection_to_a_site_ends_with_the_page_and_with_the_proxy(
    is_tunnel: bool, first_to_go: str
) -> None:
    async def main() -> None:
        async with _stubborn_site() as (site, port):
            guard = GuardProxy(allow=lambda _: True)
            async with guard:
                near = int(guard.url.rpartition(":")[2])
                reader, writer = await asyncio.open_connection("127.0.0.1", near)
                if is_tunnel:
                    writer.write(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)
                    await reader.readuntil(b"\r\n\r\n")
                    writer.write(b"GET / HTTP/1.1\r\n\r\n")
                else:
                    writer.write(_GET % port)
                await reader.readuntil(b"\r\n\r\nx")
                assert site.num_open == 1
                if first_to_go == "page":
                    writer.close()
                    await asyncio.wait_for(site.closed.wait(), 10)
            await asyncio.wait_for(site.closed.wait(), 10)
            assert site.num_open == 0
            writer.close()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_a_page_is_told_that_each_plain_connection_closes() -> None:
    async def main() -> tuple[bytes, list[bytes]]:
        async with _stubborn_site() as (site, port), GuardProxy(allow=lambda _: True) as guard:
            near = int(guard.url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", near)
            writer.write(_GET % port)
            told = await reader.readuntil(b"\r\n\r\nx")
            writer.close()
            return told, site.heads

    told, heads = asyncio.run(main())
    assert told.startswith(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n")
    assert b"\r\nConnection: close\r\n" in told
    assert b"Keep-Alive" not in told
    assert heads == [b"GET / HTTP/1.1\r\nHost: site\r\nConnection: close\r\n\r\n"]
