"""A site whose certificate nobody signed: a fault to start on, a dead end to walk into."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from webrl.actions import Answer, GoBack, Navigate
from webrl.browser import BrowserConfig, BrowserPool, BrowserSession
from webrl.errors import BrowserFault
from webrl.tasks import Task, TaskServer, Viewport

pytestmark = pytest.mark.browser
_T = TypeVar("_T")


def _self_signed(folder: Path) -> ssl.SSLContext:
    """Return the server's side of TLS with a certificate for 127.0.0.1 that it made itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = folder / "both.pem"
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


async def _page(request: web.BaseRequest) -> web.StreamResponse:
    del request
    return web.Response(text="<!doctype html>secret page", content_type="text/html")


def _run(
    folder: Path, body: Callable[[BrowserSession, str, str], Awaitable[_T]]
) -> tuple[_T, list[str]]:
    """Run `body` with the address of a plain site and of the bad one; return who asked the latter."""
    asked: list[str] = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(request.path)
        return await _page(request)

    async def main() -> _T:
        runner = web.ServerRunner(web.Server(answer))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=_self_signed(folder)).start()
        bad = f"https://127.0.0.1:{runner.addresses[0][1]}/"
        try:
            async with (
                TaskServer(routes={"/": _page}) as site,
                BrowserPool(BrowserConfig(num_slots=1, wait_s=0.2)) as pool,
                await pool.session() as session,
            ):
                return await body(session, site.base_url + "/", bad)
        finally:
            await runner.cleanup()

    return asyncio.run(main()), asked


def _task(url: str) -> Task:
    return Task(
        suite="web",
        name="site",
        url=url,
        goal="Look around.",
        answer="yes",
        allow_private=True,
        viewport=Viewport(400, 300),
    )


def test_a_task_on_a_site_with_a_bad_certificate_is_a_fault(tmp_path: Path) -> None:
    async def body(session: BrowserSession, good: str, bad: str) -> tuple[str, str]:
        with pytest.raises(BrowserFault) as caught:
            await session.reset(_task(bad), 0)
        # The next episode of the slot is well.
        observation = await session.reset(_task(good), 0)
        return caught.value.kind, observation.url.removeprefix(good)

    (kind, url), asked = _run(tmp_path, body)
    assert (kind, url) == ("bad_certificate", "")
    assert asked == []


def test_an_episode_that_walks_into_one_goes_back_and_on(tmp_path: Path) -> None:
    async def body(session: BrowserSession, good: str, bad: str) -> tuple[str, float | None]:
        await session.reset(_task(good), 0)
        await session.step(Navigate(bad))
        outcome = await session.step(GoBack())
        assert outcome.observation is not None
        return outcome.observation.url.removeprefix(good), (
            await session.step(Answer("yes"))
        ).reward

    found, asked = _run(tmp_path, body)
    assert found == ("", 1.0)
    assert asked == []
