"""Who may talk to an embedded server."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import aiohttp
import pytest
from aiohttp import web
from webrl.embedded.config import TOKEN_VARIABLE, EmbeddedServerConfig
from webrl.embedded.server import token_check


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.3.0.1"])
def test_loopback_needs_no_token(host: str) -> None:
    assert EmbeddedServerConfig(model_path="p", host=host).token is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "node-3"])
@pytest.mark.parametrize("token", [None, ""])
def test_another_address_needs_one(host: str, token: str | None) -> None:
    with pytest.raises(ValueError, match="host must be of loopback when there is no token, got"):
        EmbeddedServerConfig(model_path="p", host=host, token=token)
    config = EmbeddedServerConfig(model_path="p", host=host, token="secret")
    assert "secret" not in repr(config)


def test_the_process_says_so_before_it_listens() -> None:
    environment = {k: v for k, v in os.environ.items() if k != TOKEN_VARIABLE}
    command = [sys.executable, "-m", "webrl.embedded", "--model-path", "x", "--host", "0.0.0.0"]
    ended = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert ended.returncode == 2
    assert f"put a token into the variable {TOKEN_VARIABLE}" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_request_without_the_token_reaches_nothing() -> None:
    reached: list[str] = []

    async def route(request: web.Request) -> web.Response:
        reached.append(request.path)
        return web.Response(text="in")

    async def main() -> list[int]:
        app = web.Application(middlewares=[token_check("secret")])
        app.router.add_get("/health", route)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        statuses: list[int] = []
        async with aiohttp.ClientSession() as session:
            for header in ("", "secret", "Bearer secre", "Bearer secret\u00e9", "Bearer secret"):
                headers = {"Authorization": header} if header else {}
                for path in ("/health", "/nothing"):
                    async with session.get(url + path, headers=headers) as answer:
                        statuses.append(answer.status)
        await runner.cleanup()
        return statuses

    assert asyncio.run(main()) == [401] * 8 + [200, 404]
    assert reached == ["/health"]
