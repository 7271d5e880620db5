"""A judge that looks at nothing, behind the real client.

Invariant: it answers every question in form, the same one alike, except for the set share of requests
that it fails or answers out of form.
"""

from __future__ import annotations

import hashlib
import json
import random

from aiohttp import web

from webrl.judge.questions import blocked_question, relevance_question
from webrl.judge.verdict import Evidence
from webrl.rehearse.stub import StubServer
from webrl.tasks import Rubric


class RehearsedJudge(StubServer):
    """An OpenAI-compatible server with answers that are drawn; use it as `async with`.

    Args:
        latency_s: Mean wait before an answer, in seconds.
        error_share: Share of requests that fail: one half with a status, the other out of form.
        yes_share: Share of facts that hold.
        blocked_share: Share of episodes of which it says that the site shut the agent out.
        host: Address to listen on.
        port: Port, or 0 for a free one.
        seed: Seed of all that is drawn.
    """

    def __init__(
        self,
        *,
        latency_s: float = 0.5,
        error_share: float = 0.05,
        yes_share: float = 0.8,
        blocked_share: float = 0.02,
        host: str = "127.0.0.1",
        port: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(latency_s=latency_s, host=host, port=port, seed=seed)
        self._error_share = error_share
        self._yes_share = yes_share
        self._blocked_share = blocked_share
        self._seed = seed
        self.num_errors = 0
        """Requests that were failed or answered out of form."""

    @property
    def url(self) -> str:
        """Return what `judge.url` is to be."""
        return f"{self.base_url}/v1"

    def routes(self) -> list[web.RouteDef]:
        """Return what it answers."""
        return [web.post("/v1/chat/completions", self._complete)]

    async def _complete(self, request: web.Request) -> web.Response:
        parts = (await request.json())["messages"][1]["content"]
        draw = self._rng.random()
        if draw < self._error_share:
            self.num_errors += 1
            if draw < self._error_share / 2:
                return web.Response(status=503, text="overloaded")
            return _completion("I can not say.")
        return _completion(self._answer(parts[0]["text"], num_images=len(parts) - 1))

    def _answer(self, text: str, *, num_images: int) -> str:
        if _RELEVANT in text:
            return json.dumps({"relevant": list(range(1, num_images + 1))})
        digest = hashlib.blake2b(f"{self._seed} {text}".encode(), digest_size=8).digest()
        draw = random.Random(digest).random()
        share = self._blocked_share if _BLOCKED in text else self._yes_share
        return json.dumps({"reason": "nothing was looked at", "verdict": draw < share})


def _completion(text: str) -> web.Response:
    message = {"role": "assistant", "content": text}
    return web.json_response({"choices": [{"index": 0, "message": message}]})


_NOTHING = Evidence(goal="", rubric=Rubric(facts=()), actions=(), screenshots=(), answer=None)
_RELEVANT = relevance_question(_NOTHING, ()).text.rpartition("\n\n")[2]
"""What only the question for relevant screenshots says: the form of its answer."""
_BLOCKED = blocked_question(_NOTHING, ()).text.split("\n\n")[1]
"""What only the question for a blocked episode says."""
