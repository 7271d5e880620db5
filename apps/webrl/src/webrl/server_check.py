"""What `webrl doctor --url` finds out about a live inference server.

Invariants: a check never raises for what it finds; the server ends with the weights it had on disk.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from awrl_rollout import RolloutError, SGLangClient

from webrl.embedded.config import TOKEN_VARIABLE
from webrl.errors import WebRLError
from webrl.machine_check import Check
from webrl.servers.server_process import find_free_port

if TYPE_CHECKING:
    import torch

KNOWN_BAD_VERSIONS: Mapping[str, str] = {
    "0.5.7": "garbles Qwen3-VL",
    "0.5.8": "garbles Qwen3-VL",
}
"""Releases of SGLang whose answers can not be trained on, and why."""

_TESTED = "0.5.16"
_LOOPBACK = ("127.0.0.1", "localhost")

_FIX = "Start a server there, or correct the address; a policy must be a folder that this machine sees."

_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.15, "float16": 0.05}
"""Largest difference of a log-prob that is rounding, in nats; a stale or garbled picture costs 0.7
or more."""


def check_version(info: Mapping[str, object]) -> Check:
    """Look at the version that a server tells of itself.

    Args:
        info: Its answer to `/get_server_info`.
    """
    version = str(info.get("version"))
    if version == "embedded":
        return Check("server", True, "embedded")
    fault = KNOWN_BAD_VERSIONS.get(version)
    if fault is None:
        return Check("server", True, f"SGLang {version}")
    fix = f"Install sglang=={_TESTED}."
    return Check("server", False, f"SGLang {version} {fault}", fix)


async def check_server(
    url: str, *, policy_path: str | None = None, dtype: str | None = None
) -> list[Check]:
    """Look at the version of a server and compare its log-probs with the trainer's forward.

    Args:
        url: Its address; nobody else may use it meanwhile. What it asks for is taken from
            `AWRL_SERVER_TOKEN`.
        policy_path: Checkpoint folder that it serves; its own word when None.
        dtype: Dtype of its weights; its own word when None.
    """
    # torch and transformers take seconds to import: only this check pays for them.
    import torch  # noqa: PLC0415

    try:
        async with SGLangClient(url, token=os.environ.get(TOKEN_VARIABLE)) as client:
            info = await client.server_info()
            model_path = policy_path or str(info.get("model_path"))
            if not (Path(model_path) / "config.json").is_file():
                detail = f"{model_path} is not a folder with a config.json here"
                fix = "Name the folder that the server was started with: --policy FOLDER."
                return [
                    check_version(info),
                    Check("policy", False, detail, fix),
                ]
            name = dtype or str(info.get("dtype"))
            if name not in _TOLERANCE:
                fix = f"Name the dtype of its weights: --dtype {' | '.join(_TOLERANCE)}."
                detail = f"the server says that its weights are {name}"
                return [check_version(info), Check("parity", False, detail, fix)]
            checks = await _parity(client, url, model_path, getattr(torch, name))
            return [check_version(info), *checks]
    # ValueError: what transformers and safetensors say about a folder that is no policy.
    except (RolloutError, WebRLError, OSError, ValueError) as error:
        return [Check("server", False, f"{url}: {error}", _FIX)]


async def _parity(
    client: SGLangClient, url: str, model_path: str, dtype: torch.dtype
) -> list[Check]:
    from webrl.embedded.parity import check_parity  # noqa: PLC0415

    host = urlsplit(url).hostname
    port = find_free_port(host) if host in _LOOPBACK else None
    cases = await check_parity(client, model_path, dtype=dtype, broadcast_port=port)
    name = str(dtype).removeprefix("torch.")
    limit = _TOLERANCE[name]
    fix = (
        "Start the server with SGLANG_VLM_CACHE_SIZE_MB=0, with the trainer's dtype and from the "
        f"same folder; sglang {_TESTED} is tested."
    )
    return [
        Check(
            "parity",
            case.max_difference <= limit,
            f"{case.name}: log-probs within {case.max_difference:.2g} nats of the trainer's "
            f"in {name} ({limit:g} is the limit)",
            fix,
        )
        for case in cases
    ]
