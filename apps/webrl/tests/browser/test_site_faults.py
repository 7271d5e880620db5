"""Sites that shut out, are gone, or fail and recover: each start ends as the kind that says so."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import msgspec
import pytest
from aiohttp import web
from webrl.browser import BrowserConfig, BrowserPool
from webrl.browser.guard import GuardProxy
from webrl.endings import as_fault
from webrl.errors import BrowserFault
from webrl.tasks import Task, TaskServer, Viewport

pytestmark = pytest.mark.browser

_WALL = "<!doctype html><title>Just a moment...</title>Checking your browser"
_DEAR_READER = "<!doctype html><title>shop</title>" + "<p>We sell captcha-free lamps." * 400


class Site:
    """Answers by path; `never` until the test lets it recover."""

    def __init__(self) -> None:
        self.has_recovered = False

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        name = request.path.strip("/")
        if name == "slow" and not self.has_recovered:
            await asyncio.Event().wait()
        if name == "file":
            disposition = {"Content-Disposition": 'attachment; filename="file.bin"'}
            return web.Response(body=b"x" * 1000, headers=disposition)
        if name.isdigit():
            text = "nothing here" if name == "404" else _WALL
            return web.Response(status=int(name), text=text, content_type="text/html")
        texts = {"wall": _WALL, "long": _DEAR_READER}
        text = texts.get(name, "<!doctype html>fine")
        return web.Response(text=text, content_type="text/html")


async def _resolve(host: str, port: int) -> Sequence[str]:
    del port
    if host == "gone.example":
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    if host == "far.example":
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    return ["127.0.0.1"]


def _task(url: str) -> Task:
    return Task(
        suite="web", name="site", url=url, goal="g", answer="yes", viewport=Viewport(400, 300)
    )


def _closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_each_way_in_which_a_start_fails_has_its_kind_and_the_slot_goes_on() -> None:
    async def main() -> tuple[dict[str, str], list[str]]:
        site, found, well = Site(), dict[str, str](), list[str]()
        config = BrowserConfig(num_slots=1)
        config = msgspec.structs.replace(
            config, deadlines=msgspec.structs.replace(config.deadlines, navigate_s=1.0)
        )
        async with (
            TaskServer(routes={"/": site.answer}) as server,
            BrowserPool(config, guard=GuardProxy(resolver=_resolve, allow=lambda _: True)) as pool,
            await pool.session() as session,
        ):
            port = server.base_url.rpartition(":")[2]
            base = f"http://site.example:{port}"
            for name, url in {
                "403": f"{base}/403",
                "429": f"{base}/429",
                "503 wall": f"{base}/503",
                "200 wall": f"{base}/wall",
                "404": f"{base}/404",
                "download": f"{base}/file",
                "no name": f"http://gone.example:{port}/",
                "no name, https": f"https://gone.example:{port}/",
                "no name server": f"http://far.example:{port}/",
                "closed": f"http://site.example:{_closed_port()}/",
                "closed, https": f"https://site.example:{_closed_port()}/",
                "no tls": f"https://site.example:{port}/",
                "slow": f"{base}/slow",
            }.items():
                with pytest.raises(BrowserFault) as caught:
                    await session.reset(_task(url), 0)
                found[name] = as_fault(caught.value).kind.value
            site.has_recovered = True
            for path in ("slow", "long", "fine"):
                observation = await session.reset(_task(f"{base}/{path}"), 0)
                well.append(observation.url.rpartition("/")[2])
        return found, well

    found, well = asyncio.run(main())
    assert found == {
        "403": "site_blocked",
        "429": "site_blocked",
        "503 wall": "site_blocked",
        "200 wall": "site_blocked",
        "404": "no_page",
        "download": "no_page",
        "no name": "name_not_resolved",
        "no name, https": "name_not_resolved",
        "no name server": "network_down",
        "closed": "connection_refused",
        "closed, https": "connection_refused",
        "no tls": "bad_certificate",
        "slow": "navigation_error",
    }
    assert well == ["slow", "long", "fine"]
