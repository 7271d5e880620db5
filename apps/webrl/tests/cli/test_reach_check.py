"""`webrl doctor --config`: a real proxy and a real browser elsewhere, well and not."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from forward_proxy import ForwardProxy
from remote_chromium import RemoteChromium
from webrl.cli.main import main

NOBODY = "http://127.0.0.1:9"


@contextmanager
def _beside(proxy: ForwardProxy, remote: RemoteChromium | None = None) -> Generator[None]:
    """Run a proxy, and a browser, in another thread: the command has an event loop of its own."""
    is_up, loop = threading.Event(), asyncio.new_event_loop()
    is_over = asyncio.Event()

    async def stay() -> None:
        async with proxy:
            if remote is not None:
                await remote.start()
            is_up.set()
            await is_over.wait()
            if remote is not None:
                await remote.__aexit__(None, None, None)

    thread = threading.Thread(target=loop.run_until_complete, args=(stay(),))  # noqa: TID251 -- a loop beside
    thread.start()
    is_up.wait(60)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(is_over.set)
        thread.join()
        loop.close()


def _checks(capsys: pytest.CaptureFixture[str], *settings: str) -> tuple[int, dict[str, str]]:
    code = main(["doctor", "--config", "laptop", *settings, "--json"])
    return code, {check["name"]: check["detail"] for check in json.loads(capsys.readouterr().out)}


def test_credentials_that_the_proxy_takes_or_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = ForwardProxy({}, "someone:right-word")
    with _beside(proxy):
        settings = (f"env.proxy={proxy.url}", "env.proxy_credentials_env=PROXY_LOGIN")
        monkeypatch.setenv("PROXY_LOGIN", "someone:right-word")
        _, found = _checks(capsys, *settings)
        assert "answers and takes the credentials" in found["proxy"]
        monkeypatch.setenv("PROXY_LOGIN", "someone:wrong-word")
        code, found = _checks(capsys, *settings)
    assert code == 1
    assert "refuses the credentials" in found["proxy"]
    assert "word" not in found["proxy"]


@pytest.mark.browser
def test_a_browser_elsewhere_that_is_there_or_not(capsys: pytest.CaptureFixture[str]) -> None:
    remote = RemoteChromium()
    with _beside(ForwardProxy({}), remote):
        code, found = _checks(capsys, f"env.browsers=['{remote.address}']")
        assert code == 0
        assert "pages go through the guard" in found["browser"]
    code, found = _checks(capsys, f"env.browsers=['{NOBODY}']")
    assert code == 1
    assert NOBODY in found["browser"]
