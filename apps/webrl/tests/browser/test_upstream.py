"""Pages behind a proxy of the network: what it is asked for, what the guard still refuses, its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from forward_proxy import ForwardProxy
from webrl.actions import LeftClick, Navigate
from webrl.browser import BrowserConfig, BrowserPool, UpstreamConfig
from webrl.browser.guard import GuardProxy, is_public_name
from webrl.browser.upstream import UpstreamProxy
from webrl.endings import ending_of
from webrl.errors import BrowserFault, PreflightError
from webrl.tasks import Task, TaskServer

SITE, ADDRESS = "shop.example", "93.184.215.14"
LOGIN = "someone:a-secret-word"
TASK = Task(suite="web", name="shop", url=f"http://{SITE}/", goal="g", answer="x", settle_s=10.0)


async def resolver(host: str, port: int) -> Sequence[str]:
    """Resolve the one site to a public address, and every other name to a private one."""
    return [ADDRESS] if host == SITE else ["10.0.0.1"]


async def _page(request: web.BaseRequest) -> web.StreamResponse:
    names = sorted(request.headers)
    link = "<a href='/next' style='position:fixed;inset:0'></a>"
    text = f"<title>{request.headers['Host']}</title>{request.path} {names} {link}"
    return web.Response(text=text, content_type="text/html")


async def _no_wait(delay_s: float) -> None:
    pass


def _upstream(
    proxy: ForwardProxy, login: str = "", *, resolves_names: bool = False
) -> UpstreamProxy:
    config = UpstreamConfig(
        url=proxy.url,
        credentials_env="PROXY_LOGIN" if login else None,
        resolves_names=resolves_names,
    )
    return UpstreamProxy(config, environment={"PROXY_LOGIN": login}, sleep=_no_wait)


@asynccontextmanager
async def _guarded(
    login: str = "", given: str | None = None, *, resolves_names: bool = False
) -> AsyncGenerator[tuple[GuardProxy, ForwardProxy]]:
    """Open a site, a proxy that `login` opens, and a guard that has `given`."""
    async with TaskServer(routes={"/": _page}) as server:
        port = int(server.base_url.rpartition(":")[2])
        sites = {f"{name}:80": port for name in (SITE, ADDRESS)}
        async with ForwardProxy(sites, login) as proxy:
            upstream = _upstream(
                proxy, login if given is None else given, resolves_names=resolves_names
            )
            async with GuardProxy(resolver=resolver, upstream=upstream) as guard:
                yield guard, proxy


async def _get(guard: GuardProxy, url: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession(trust_env=False) as http,
        http.get(url, proxy=guard.url) as answer,
    ):
        return answer.status, await answer.text()


def test_the_proxy_is_asked_for_the_address_that_was_checked_and_the_site_sees_its_name() -> None:
    async def main() -> tuple[int, str, list[str]]:
        async with _guarded(LOGIN) as (guard, proxy):
            status, text = await _get(guard, f"http://{SITE}/a?b=c")
            return status, text, proxy.asked

    status, text, asked = asyncio.run(main())
    assert (status, asked) == (200, [f"CONNECT {ADDRESS}:80 HTTP/1.1"])
    assert SITE in text
    assert "Proxy" not in text


def test_a_proxy_that_looks_names_up_is_asked_for_the_name() -> None:
    async def main() -> tuple[int, str, list[str]]:
        async with _guarded(LOGIN, resolves_names=True) as (guard, proxy):
            status, text = await _get(guard, f"http://{SITE}/a")
            return status, text, proxy.asked

    status, text, asked = asyncio.run(main())
    assert (status, asked) == (200, [f"GET http://{SITE}/a HTTP/1.1"])
    assert SITE in text


def test_a_tunnel_goes_through_the_proxy_too() -> None:
    async def main() -> tuple[bytes, list[str]]:
        async with _guarded(LOGIN) as (guard, proxy):
            port = int(guard.url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"CONNECT {SITE}:80 HTTP/1.1\r\n\r\n".encode())
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            writer.write(f"GET /in HTTP/1.1\r\nHost: {SITE}\r\nConnection: close\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
            return answer, proxy.asked

    answer, asked = asyncio.run(main())
    assert asked == [f"CONNECT {ADDRESS}:80 HTTP/1.1"]
    assert b"<title>shop.example</title>/in" in answer


@pytest.mark.parametrize(
    ("host", "resolves_names"),
    [
        ("rebinding.example", False),
        ("127.0.0.1", False),
        ("169.254.169.254", True),
        ("localhost", True),
        ("printer", True),
        ("files.internal", True),
    ],
)
def test_the_guard_refuses_before_the_proxy_is_asked(host: str, resolves_names: bool) -> None:
    async def main() -> tuple[int, list[str], int]:
        async with _guarded(resolves_names=resolves_names) as (guard, proxy):
            status, _ = await _get(guard, f"http://{host}/")
            return status, proxy.asked, guard.num_refused

    assert asyncio.run(main()) == (403, [], 1)


@pytest.mark.parametrize("name", ["shop.example", "a.b.co", "xn--bcher-kva.example."])
def test_names_of_the_public_network(name: str) -> None:
    assert is_public_name(name)


@pytest.mark.parametrize(
    "name",
    ["localhost", "a.localhost", "db.internal", "nas.local", "1.0.0.127.in-addr.arpa", "0x7f.1"],
)
def test_names_that_are_looked_up_within_a_network_only(name: str) -> None:
    assert not is_public_name(name)


def test_a_site_that_the_proxy_does_not_reach_is_no_failure_of_the_proxy() -> None:
    async def main() -> tuple[int, int]:
        async with _guarded() as (guard, proxy):
            proxy.sites.clear()
            status, _ = await _get(guard, f"http://{SITE}/")
            return status, guard.num_upstream_failures

    assert asyncio.run(main()) == (502, 0)


@pytest.mark.parametrize("resolves_names", [False, True])
def test_refused_credentials_are_a_failure_of_the_proxy_that_does_not_name_them(
    resolves_names: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> str:
        given = "someone:wrong-word"
        async with _guarded(LOGIN, given, resolves_names=resolves_names) as (guard, _):
            with pytest.raises(aiohttp.ClientError):
                await _get(guard, f"http://{SITE}/")
            return guard.last_upstream_failure

    message = asyncio.run(main())
    assert "refuses the credentials (407)" in message
    assert "wrong-word" not in message + caplog.text


def test_a_proxy_that_is_gone_is_told_of_once_and_not_for_each_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> int:
        async with _guarded() as (guard, proxy):
            proxy.stop()
            for _ in range(3):
                with pytest.raises(aiohttp.ClientError):
                    await _get(guard, f"http://{SITE}/")
            return guard.num_upstream_failures

    assert asyncio.run(main()) >= 3
    assert caplog.text.count("can not be reached") == 1


def test_credentials_come_from_the_environment_in_the_form_that_a_proxy_takes() -> None:
    config = UpstreamConfig(url="http://127.0.0.1:1", credentials_env="PROXY_LOGIN")
    for value in ("", "a-secret-word"):
        with pytest.raises(PreflightError, match="must hold USER:PASSWORD") as caught:
            UpstreamProxy(config, environment={"PROXY_LOGIN": value})
        assert "a-secret-word" not in str(caught.value)


@pytest.mark.browser
def test_episodes_go_through_the_proxy_and_are_faults_while_it_is_gone() -> None:
    async def main() -> tuple[str, list[str], list[str]]:
        async with _guarded(LOGIN) as (guard, proxy):
            # The pool enters and leaves the guard, so it gets one of its own.
            guard = GuardProxy(resolver=resolver, upstream=_upstream(proxy, LOGIN))
            pool = BrowserPool(BrowserConfig(num_slots=1), guard=guard)
            async with pool, await pool.session() as session:
                await session.reset(TASK, 0)
                title = str(await session.evaluate("document.title"))
                faults: list[str] = []
                for action in (Navigate(f"http://{SITE}/more"), LeftClick(500, 500)):
                    proxy.stop()
                    with pytest.raises(BrowserFault) as caught:  # after an action
                        await session.step(action)
                    faults.append(ending_of(caught.value, is_page_at_fault=True).name)
                    await proxy.start()
                    await session.reset(TASK, 0)
                proxy.stop()
                with pytest.raises(BrowserFault) as caught:  # at the start
                    await session.reset(TASK, 0)
                faults.append(ending_of(caught.value).name)
                await proxy.start()
                await session.reset(TASK, 0)
                outcome = await session.step(LeftClick(1, 1))
                assert not outcome.is_done
                return title, faults, proxy.asked

    title, faults, asked = asyncio.run(main())
    assert (title, faults) == (SITE, ["proxy_lost"] * 3)
    assert set(asked) == {f"CONNECT {ADDRESS}:80 HTTP/1.1"}
