"""What tests of an inference server need: a page, a reference forward, and a trainer's rank 0.

Invariants:

* The reference goes through the HF model's own forward in one piece: no cache, no batching, no code
  that it shares with the server but the processor.
* `RankZero` opens its group as SGLang's clients do, and never touches the default group of the
  process.
"""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import torch
import torch.distributed as dist
from PIL import Image, ImageDraw
from torch.distributed.distributed_c10d import (
    Backend,
    PrefixStore,
    _new_process_group_helper,  # pyright: ignore[reportPrivateUsage]
    _world,  # pyright: ignore[reportPrivateUsage]
)
from torch.distributed.rendezvous import rendezvous

from webrl.policy import PolicyProcessor

__all__ = ["RankZero", "ServerUnderTest", "as_base64", "page_png", "reference_logprobs"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerUnderTest:
    """The server that the contract suite talks to."""

    url: str
    """Its address."""
    model_path: Path
    """Folder of the checkpoint that it was started with."""
    dtype: torch.dtype
    """Dtype of its weights."""
    is_embedded: bool
    """Whether it is ours."""

    @property
    def tolerance(self) -> float:
        """Largest difference of a log-prob to the HF forward that is rounding."""
        return 1e-4 if self.dtype == torch.float32 else 0.05


def page_png(seed: int, *, width: int = 160, height: int = 224) -> bytes:
    """Return a page with a few boxes and words as PNG; equal seeds give equal bytes."""
    rng = random.Random(seed)
    page = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(page)
    for _ in range(5):
        x, y = rng.randrange(width), rng.randrange(height)
        colour = (rng.randrange(256), rng.randrange(256), rng.randrange(256))
        draw.rectangle((x, y, x + rng.randrange(8, 60), y + rng.randrange(8, 60)), fill=colour)
        draw.text((x, y), f"item {rng.randrange(1000)}", fill="black")
    buffer = io.BytesIO()
    page.save(buffer, format="PNG")
    return buffer.getvalue()


def as_base64(image: bytes) -> str:
    """Return the form in which an image travels in `image_data`."""
    return base64.b64encode(image).decode()


@torch.inference_mode()
def reference_logprobs(
    model: torch.nn.Module,
    processor: PolicyProcessor,
    *,
    prompt_ids: Sequence[int],
    images: Sequence[bytes],
    output_ids: Sequence[int],
    temperature: float = 1.0,
    masked_token_ids: Sequence[int] = (),
) -> list[float]:
    """Return the log-prob of each output token by one full HF forward.

    Args:
        model: The HF model, in evaluation mode.
        processor: Makes the model inputs.
        prompt_ids: Prompt with one placeholder per image.
        images: Encoded images.
        output_ids: Tokens whose log-probs are wanted.
        temperature: Divides the logits.
        masked_token_ids: Ids at minus infinity.
    """
    inputs = processor.model_inputs([*prompt_ids, *output_ids], images)
    kwargs: dict[str, torch.Tensor] = {}
    if inputs.pixel_values is not None and inputs.image_grid_thw is not None:
        kwargs = {"pixel_values": inputs.pixel_values, "image_grid_thw": inputs.image_grid_thw}
    logits = model(
        input_ids=inputs.input_ids[None],
        position_ids=inputs.position_ids[:, None],
        use_cache=False,
        **kwargs,
    ).logits[0, -len(output_ids) - 1 : -1]
    logits = logits.float()
    logits[:, list(masked_token_ids)] = -torch.inf
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    return logprobs.gather(1, torch.tensor(output_ids)[:, None])[:, 0].tolist()


class RankZero:
    """The sending side of a weight group; a context manager that leaves the group at its end."""

    def __init__(
        self, *, port: int, group_name: str, world_size: int = 2, timeout_s: float = 20.0
    ) -> None:
        """Remember where the group meets; `open` waits for its members."""
        self.port = port
        self.group_name = group_name
        self.world_size = world_size
        self._timeout = timedelta(seconds=timeout_s)
        self._group: dist.ProcessGroup | None = None

    def open(self) -> None:
        """Open the group as rank 0; blocks until every member came."""
        iterator = rendezvous(
            f"tcp://127.0.0.1:{self.port}", 0, self.world_size, timeout=self._timeout
        )
        store, rank, world_size = next(iterator)
        store.set_timeout(self._timeout)
        group, _ = _new_process_group_helper(
            world_size,
            rank,
            [],
            Backend("gloo"),
            PrefixStore(self.group_name, store),
            group_name=cast("Any", self.group_name),
            timeout=self._timeout,
        )
        _world.pg_group_ranks[group] = {i: i for i in range(world_size)}
        self._group = cast("dist.ProcessGroup", group)

    def send(self, tensors: Mapping[str, torch.Tensor], *, is_flattened: bool) -> None:
        """Broadcast `tensors` in order, as one bucket of bytes or one by one."""
        assert self._group is not None
        if is_flattened:
            pieces = [
                t.detach().contiguous().reshape(-1).view(torch.uint8) for t in tensors.values()
            ]
            dist.broadcast(torch.cat(pieces), src=0, group=self._group)
            return
        for tensor in tensors.values():
            dist.broadcast(tensor.detach().contiguous(), src=0, group=self._group)

    def close(self) -> None:
        """Leave the group; a second call is harmless."""
        group, self._group = self._group, None
        if group is not None:
            dist.destroy_process_group(group)

    def __enter__(self) -> RankZero:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
