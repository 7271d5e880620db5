"""A server that speaks `/v1/chat/completions` on loopback and says what a test tells it to."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import pytest
from aiohttp import web

Reply = str | int | None
"""A text as the model's, a status, or `None` for an answer that never comes."""


class ChatServer:
    """Answers each request with what `reply` says; use it as `async with`."""

    def __init__(self, reply: Callable[[str], Reply]) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.num_running = 0
        self.most_running = 0
        self.error_text = "out of order"
        self.delay_s = 0.0
        self.in_parts = False
        self.finish_reasons: Iterator[str] = itertools.repeat("stop")
        self._reply = reply
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Return the base address."""
        assert self._runner is not None
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}/v1"

    @property
    def texts(self) -> list[str]:
        """Return the text of every request."""
        return [request["messages"][1]["content"][0]["text"] for request in self.requests]

    async def __aenter__(self) -> ChatServer:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            await asyncio.sleep(self.delay_s)
            reply = self._reply(body["messages"][1]["content"][0]["text"])
            if reply is None:
                await asyncio.Event().wait()
        finally:
            self.num_running -= 1
        if isinstance(reply, int):
            return web.Response(status=reply, text=self.error_text)
        content = [{"type": "text", "text": reply}] if self.in_parts else reply
        message = {"role": "assistant", "content": content}
        choice = {"index": 0, "message": message, "finish_reason": next(self.finish_reasons)}
        # What is neither prompt nor completion is reasoning.
        usage = {"prompt_tokens": 100, "completion_tokens": 4, "total_tokens": 110}
        return web.json_response({"choices": [choice], "usage": usage})


def verdict(is_true: bool, reason: str = "because") -> str:
    """Return the answer of a model that keeps to the form."""
    return json.dumps({"reason": reason, "verdict": is_true})


@pytest.fixture
def chat_server() -> type[ChatServer]:
    """Return the class, which each test gives its replies."""
    return ChatServer


@pytest.fixture
def says() -> Callable[..., str]:
    """Return what spells a verdict."""
    return verdict
