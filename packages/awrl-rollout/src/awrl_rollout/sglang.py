"""Client of one inference server that speaks SGLang's HTTP.

Invariants:

* Every call ends: each has a deadline, counted from the call, and a server that does not answer in
  time raises `ServerUnavailableError`.
* Nothing is repeated here. Who repeats, and how often, is the caller's decision
  (`InterruptibleGenerator` for generation).
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
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType

from awrl_rollout.errors import ServerRefusedError, ServerUnavailableError
from awrl_rollout.protocol import GenerateRequest, GenerateResult
from awrl_rollout.sglang_transport import PauseMode, SGLangClientConfig, SGLangTransport
from awrl_rollout.sglang_wire import (
    WeightBucket,
    WeightChecksums,
    answer_from_reply,
    checksums_from_reply,
    generate_body,
)

__all__ = ["SGLangClient"]

logger = logging.getLogger(__name__)


class SGLangClient:
    """All endpoints of one server; a `GenerateClient` and what a weight update needs."""

    def __init__(
        self,
        base_url: str,
        *,
        config: SGLangClientConfig | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Make a client; no connection is opened before the first call.

        Args:
            base_url: `http://host:port` of the server.
            config: Limits; the defaults when `None`.
            sleep: Waits between polls of `wait_until_healthy` and `flush_cache`.

        Raises:
            ValueError: The address is not http.
        """
        self._config = config or SGLangClientConfig()
        self._transport = SGLangTransport(base_url, self._config)
        self.base_url = self._transport.base_url
        self._sleep = sleep
        self._attempts = itertools.count()
        self._identity = uuid.uuid4().hex[:12]

    async def __aenter__(self) -> SGLangClient:
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
        reply = await self._transport.call(
            "POST", "/generate", body, deadline_s=self._config.generate_deadline_s
        )
        return answer_from_reply(reply, initial_version=self._config.initial_version)

    async def is_healthy(self, *, deadline_s: float = 5.0) -> bool:
        """Return whether the server answers `/health` with 200 within `deadline_s`."""
        try:
            await self._transport.call("GET", "/health", None, deadline_s=deadline_s)
        except (ServerRefusedError, ServerUnavailableError):
            return False
        return True

    async def wait_until_healthy(self, *, deadline_s: float, interval_s: float = 0.1) -> None:
        """Return once `/health` answers 200.

        Raises:
            ServerUnavailableError: Not healthy within `deadline_s`.
        """
        try:
            async with asyncio.timeout(deadline_s):
                while not await self.is_healthy():
                    await self._sleep(interval_s)
        except TimeoutError as error:
            raise ServerUnavailableError(
                f"{self.base_url} must answer /health within {deadline_s:g} s. "
                "Read the server's log."
            ) from error

    async def pause_generation(self, mode: PauseMode = "abort") -> None:
        """Stop generating; with `abort` every request in flight is answered with what it has."""
        await self._transport.post("/pause_generation", {"mode": mode})

    async def continue_generation(self) -> None:
        """Go on generating; harmless when not paused."""
        await self._transport.post("/continue_generation", {"torch_empty_cache": False})

    async def abort_request(self, rid_prefix: str) -> None:
        """Abort the requests whose id starts with `rid_prefix`, such as an episode id.

        Raises:
            ValueError: The prefix is empty, which would mean every request.
        """
        if not rid_prefix:
            raise ValueError("rid_prefix must not be empty, got ''. Use abort_all for every one.")
        await self._transport.post("/abort_request", {"rid": rid_prefix, "abort_all": False})

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
                        await self._transport.post("/flush_cache", {})
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

    async def init_weights_update_group(
        self,
        *,
        master_address: str,
        master_port: int,
        rank_offset: int,
        world_size: int,
        group_name: str,
        backend: str,
        deadline_s: float = 120.0,
    ) -> None:
        """Make the server join a broadcast group while rank 0 opens it at the same time.

        Raises:
            ServerRefusedError: The server could not join; its reason is in the message.
            ServerUnavailableError: No answer within `deadline_s`.
        """
        body = {
            "master_address": master_address,
            "master_port": master_port,
            "rank_offset": rank_offset,
            "world_size": world_size,
            "group_name": group_name,
            "backend": backend,
        }
        await self._transport.post("/init_weights_update_group", body, deadline_s=deadline_s)

    async def destroy_weights_update_group(self, group_name: str) -> None:
        """Make the server leave the group.

        Raises:
            ServerRefusedError: The server knows no such group.
        """
        await self._transport.post("/destroy_weights_update_group", {"group_name": group_name})

    async def update_weights_from_distributed(
        self,
        bucket: WeightBucket,
        *,
        group_name: str,
        weight_version: int | None = None,
        flush_cache: bool = False,
        deadline_s: float = 120.0,
    ) -> None:
        """Make the server receive one broadcast, while rank 0 sends it, and load it.

        Args:
            bucket: Names, dtypes and shapes in the order of the broadcast.
            group_name: Group that both have joined.
            weight_version: Version label from this bucket on; give it with the last one only.
            flush_cache: Drop the prefix cache too. Must be false unless the server is idle.
            deadline_s: Seconds until the server must have answered.

        Raises:
            ServerRefusedError: The server refused or could not load; weights may be partial.
            ServerUnavailableError: No answer within `deadline_s`.
        """
        body: dict[str, object] = {
            "names": list(bucket.names),
            "dtypes": list(bucket.dtypes),
            "shapes": [list(shape) for shape in bucket.shapes],
            "group_name": group_name,
            "flush_cache": flush_cache,
            "abort_all_requests": False,
        }
        if bucket.is_flattened:
            body["load_format"] = "flattened_bucket"
        if weight_version is not None:
            body["weight_version"] = str(weight_version)
        await self._transport.post("/update_weights_from_distributed", body, deadline_s=deadline_s)

    async def update_weights_from_disk(
        self,
        model_path: str,
        *,
        weight_version: int | None = None,
        flush_cache: bool = False,
        deadline_s: float = 600.0,
    ) -> None:
        """Make the server load a checkpoint folder that it can read.

        Raises:
            ValueError: The path is not absolute; a Hub id would fail silently at the server.
            ServerRefusedError: The server could not load it.
            ServerUnavailableError: No answer within `deadline_s`.
        """
        if not model_path.startswith("/"):
            raise ValueError(
                f"model_path must be an absolute folder, got {model_path!r}. "
                "Hub ids are refused: download first and give the local path."
            )
        body: dict[str, object] = {"model_path": model_path, "abort_all_requests": False}
        body["flush_cache"] = flush_cache
        if weight_version is not None:
            body["weight_version"] = str(weight_version)
        await self._transport.post("/update_weights_from_disk", body, deadline_s=deadline_s)

    async def update_weight_version(self, version: int) -> None:
        """Set the version label alone. Requests in flight are not aborted."""
        body = {"new_version": str(version), "abort_all_requests": False}
        await self._transport.post("/update_weight_version", body)

    async def weights_checksums(
        self, names: Sequence[str] | None = None, *, deadline_s: float = 120.0
    ) -> WeightChecksums:
        """Return checksums of the server's weights.

        Args:
            names: Weights that are wanted, all when `None`; SGLang always gives all, as it fuses them.
            deadline_s: Seconds until the server must have answered.
        """
        body: dict[str, object] = {"action": "checksum"}
        body |= {} if names is None else {"names": list(names)}
        reply = await self._transport.post("/weights_checker", body, deadline_s=deadline_s)
        return checksums_from_reply(reply)

    async def server_info(self) -> dict[str, object]:
        """Return what `/get_server_info` answers."""
        return await self._transport.get_json("/get_server_info")

    async def model_info(self) -> dict[str, object]:
        """Return what `/get_model_info` answers: path, version label, architecture."""
        return await self._transport.get_json("/get_model_info")

    async def weight_version(self) -> int:
        """Return the server's current version label as a number."""
        label = (await self.model_info()).get("weight_version")
        return self._config.initial_version if label == "default" else int(str(label))
