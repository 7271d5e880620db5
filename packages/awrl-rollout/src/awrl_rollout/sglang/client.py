"""Client of one inference server that speaks SGLang's HTTP.

Invariants:

* Every call ends: each has a deadline, counted from the call, and a server that does not answer in
  time raises `ServerUnavailableError`.
* Only calls that may safely happen twice (pause, continue, flush, labels, reads) are repeated, a
  bounded number of times, after errors that may pass (no connection, HTTP 5xx or 429) and never
  after a missed deadline. Generation is repeated by `InterruptibleGenerator` alone; aborts, groups
  and weights are sent once.
* No call aborts requests unless it says so in its name or argument: SGLang's own defaults that
  abort (`update_weight_version`) or flush are always overridden explicitly.
* A call that was cancelled closes its connection, which makes the server drop the request.

One client belongs to one event loop. Endpoints are those of SGLang 0.5.16.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from types import TracebackType
from typing import Self

from awrl_rollout.errors import ServerRefusedError, ServerUnavailableError
from awrl_rollout.generation.protocol import GenerateRequest, GenerateResult
from awrl_rollout.retry import Sleep
from awrl_rollout.sglang.transport import PauseMode, SGLangClientConfig, SGLangTransport
from awrl_rollout.sglang.weights import ServerWeights
from awrl_rollout.sglang.wire import answer_from_reply, generate_body

logger = logging.getLogger(__name__)


class SGLangClient:
    """All endpoints of one server; a `GenerateClient`. No connection is opened before a call.

    Args:
        base_url: `http://host:port` of the server.
        token: What the server asks for (`--api-key` of SGLang); None where it asks for nothing.

    Attributes:
        weights: What changes the server's weights.

    Raises:
        ValueError: The address is not http.
    """

    def __init__(
        self,
        base_url: str,
        *,
        config: SGLangClientConfig | None = None,
        token: str | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._config = config or SGLangClientConfig()
        self._transport = SGLangTransport(base_url, self._config, token=token, sleep=sleep)
        self.base_url = self._transport.base_url
        self.weights = ServerWeights(self._transport)
        self._sleep = sleep
        self._attempts = itertools.count()
        self._identity = uuid.uuid4().hex[:12]
        self._in_flight: set[str] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections; a second call is harmless."""
        await self._transport.aclose()

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Return one attempt's tokens with log-probs and versions, as the server answered them.

        Args:
            request: What to generate. Masked ids travel as `logit_bias`, images as `image_data`.

        Returns:
            The answer; `abort` when the server cut it, with the tokens made so far.

        Raises:
            ServerRefusedError: The server says that the request is wrong (HTTP 4xx).
            ServerUnavailableError: No answer: connection, HTTP 5xx, or the attempt's deadline.
        """
        rid = f"{request.episode_id}/{self._identity}-{next(self._attempts)}"
        body = generate_body(request, rid=rid, stream=self._config.use_stream)
        self._in_flight.add(rid)
        try:
            reply = await self._transport.call(
                "POST", "/generate", body, deadline_s=self._config.generate_deadline_s
            )
        finally:
            self._in_flight.discard(rid)
        return answer_from_reply(reply, initial_version=self._config.initial_version)

    async def is_healthy(self, *, deadline_s: float = 5.0) -> bool:
        """Return whether the server answers `/health` with 200 within `deadline_s`."""
        try:
            await self._transport.call("GET", "/health", None, deadline_s=deadline_s)
        except (ServerRefusedError, ServerUnavailableError):
            return False
        return True

    async def wait_until_healthy(self, *, deadline_s: float, interval_s: float = 0.1) -> None:
        """Return once `/health` answers 200, asked every `interval_s`.

        Raises:
            ServerUnavailableError: It was not healthy within `deadline_s`.
        """
        try:
            async with asyncio.timeout(deadline_s):
                while not await self.is_healthy():
                    await self._sleep(interval_s)
        except TimeoutError as error:
            raise ServerUnavailableError(
                f"{self.base_url} must answer /health within {deadline_s:g} s. Read its log."
            ) from error

    async def pause_generation(self, mode: PauseMode = "abort") -> None:
        """Stop generating; with `abort` every request in flight is answered with what it has."""
        await self._transport.post("/pause_generation", {"mode": mode}, is_idempotent=True)

    async def continue_generation(self) -> None:
        """Go on generating; harmless when not paused."""
        body = {"torch_empty_cache": False}
        await self._transport.post("/continue_generation", body, is_idempotent=True)

    async def abort_request(self, rid_prefix: str) -> None:
        """Abort this client's requests whose id starts with `rid_prefix`, such as an episode id.

        SGLang with one tokenizer process ignores a prefix: it is sent every full id too.

        Raises:
            ValueError: The prefix is empty, which would mean every request.
        """
        if not rid_prefix:
            raise ValueError("rid_prefix must not be empty, got ''. Use abort_all for every one.")
        own = sorted(rid for rid in self._in_flight if rid.startswith(rid_prefix))
        for rid in (rid_prefix, *own):
            await self._transport.post("/abort_request", {"rid": rid, "abort_all": False})

    async def abort_all(self) -> None:
        """Abort every request that the server runs or queues."""
        await self._transport.post("/abort_request", {"rid": "", "abort_all": True})

    async def flush_cache(self, *, deadline_s: float = 30.0, interval_s: float = 0.1) -> None:
        """Drop the server's prefix cache, waiting for it to be idle first.

        A server that is busy refuses to flush; it is asked again every `interval_s`.

        Raises:
            ServerUnavailableError: Still busy after `deadline_s`.
        """
        try:
            async with asyncio.timeout(deadline_s):
                while True:
                    try:
                        await self._transport.post("/flush_cache", {}, is_idempotent=True)
                    except ServerRefusedError as error:
                        logger.debug("flush refused, server busy: %s", error)
                        await self._sleep(interval_s)
                    else:
                        return
        except TimeoutError as error:
            raise ServerUnavailableError(
                f"{self.base_url} must be idle within {deadline_s:g} s to flush its cache, got "
                "requests still running or waiting. Pause with mode abort, or wait longer."
            ) from error

    async def server_info(self) -> dict[str, object]:
        """Return what `/get_server_info` answers."""
        return await self._transport.get_json("/get_server_info")

    async def model_info(self) -> dict[str, object]:
        """Return what `/get_model_info` answers: path, version label, architecture."""
        return await self._transport.get_json("/get_model_info")
