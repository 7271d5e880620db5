"""What an embedded server is told at its start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from webrl.loopback import is_loopback

TOKEN_VARIABLE = "AWRL_SERVER_TOKEN"
"""Environment variable with the token; an argument could be read by everyone on the machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddedServerConfig:
    """Settings of one embedded server process.

    Raises:
        ValueError: A field breaks its rule; the message names it.
    """

    model_path: str
    """Local folder of an HF image-text checkpoint with its processor."""
    host: str = "127.0.0.1"
    """Address to listen on; one that is not of loopback needs a token."""
    port: int = 30000
    """Port to listen on; taken before the model is loaded."""
    device: str = "cpu"
    """Torch device of the model."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Dtype of weights and KV cache; updates must come in it."""
    tp_size: int = 1
    """Members that it brings into a broadcast group, each of which receives everything: what a server
    of so many devices would be to the trainer. The model itself stays whole, on one device."""
    num_threads: int = 1
    """Torch threads for the model."""
    weight_version: str = "default"
    """Version label until the first update; `default` as in SGLang."""
    max_running_requests: int = 64
    """Requests in one running batch; more wait their turn."""
    max_prefill_tokens: int = 16384
    """Padded tokens of one prefill forward; bounds its memory and how long an abort waits."""
    context_length: int | None = None
    """Longest prompt plus answer, in tokens; the model's own limit when `None`, or where it is less."""
    prompt_cache_bytes: int = 2**29
    """Bytes of prefilled prompts kept for siblings; 0 shares within one step only."""
    image_cache_bytes: int = 2**28
    """Bytes of image features kept until the next weight update; 0 keeps none."""
    max_body_bytes: int = 64 * 2**20
    """Largest request body; a bigger one is answered 413."""
    group_timeout_s: float = 60.0
    """Torch's own timeout of broadcast groups: joining, and each broadcast."""
    seed: int = 0
    """Seed of the draws of requests that bring no seed of their own."""
    token: str | None = field(default=None, repr=False)
    """What every request must carry as `Authorization: Bearer`; `None` asks for nothing."""

    def __post_init__(self) -> None:
        if not self.token and not is_loopback(self.host):
            raise ValueError(
                f"host must be of loopback when there is no token, got {self.host!r}. "
                f"Listen on 127.0.0.1, or put a token into the variable {TOKEN_VARIABLE}."
            )
        if not 0 <= self.port < 65536:
            raise ValueError(f"port must be in [0, 65535], got {self.port}. Use 0 for a free one.")
        for name in (
            "tp_size",
            "num_threads",
            "max_running_requests",
            "max_prefill_tokens",
            "max_body_bytes",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}. Raise it.")
        for name in ("prompt_cache_bytes", "image_cache_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}. Use 0 for none.")
        if self.tp_size > 1 and self.device != "cpu":
            raise ValueError(
                f"tp_size must be 1 on device {self.device!r}, got {self.tp_size}. The model is whole."
            )
        if self.context_length is not None and self.context_length < 2:
            raise ValueError(f"context_length must be >= 2, got {self.context_length}. Raise it.")
        if not self.group_timeout_s > 0:
            raise ValueError(f"group_timeout_s must be > 0, got {self.group_timeout_s}. Raise it.")
