"""The endpoints of one server that a weight update calls.

Invariants:

* No call aborts requests or flushes a cache unless its argument says so: SGLang's own defaults are
  always overridden explicitly.
* What takes part in a broadcast is sent once: a repeated call would wait for a sender that is gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from awrl_rollout.sglang.transport import SGLangTransport
from awrl_rollout.sglang.wire import WeightBucket, WeightChecksums, checksums_from_reply


class ServerWeights:
    """The weights of one server, their version label and their broadcast group."""

    def __init__(self, transport: SGLangTransport) -> None:
        self._transport = transport

    async def join(
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

    async def leave(self, group_name: str) -> None:
        """Make the server leave the group.

        Raises:
            ServerRefusedError: The server knows no such group.
        """
        await self._transport.post("/destroy_weights_update_group", {"group_name": group_name})

    async def receive(
        self,
        bucket: WeightBucket,
        *,
        group_name: str,
        weight_version: int | None = None,
        flush_cache: bool = False,
        deadline_s: float = 120.0,
    ) -> None:
        """Make the server receive one broadcast, while rank 0 sends it, and load it.

        Give `weight_version`, the version label from this bucket on, with the last one only.
        `flush_cache` drops the prefix cache too, and must be false unless the server is idle.

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

    async def load(
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

    async def set_version(self, version: int) -> None:
        """Set the version label alone. Requests in flight are not aborted."""
        body = {"new_version": str(version), "abort_all_requests": False}
        await self._transport.post("/update_weight_version", body, is_idempotent=True)

    async def version(self) -> int:
        """Return the server's version label as a number."""
        label = (await self._transport.get_json("/get_model_info")).get("weight_version")
        initial = self._transport.config.initial_version
        return initial if label == "default" else int(str(label))

    async def checksums(
        self, names: Sequence[str] | None = None, *, deadline_s: float = 120.0
    ) -> WeightChecksums:
        """Return checksums of the named weights, all when None; SGLang always gives all it fused."""
        body: dict[str, object] = {"action": "checksum"}
        body |= {} if names is None else {"names": list(names)}
        reply = await self._transport.post(
            "/weights_checker", body, deadline_s=deadline_s, is_idempotent=True
        )
        return checksums_from_reply(reply)
