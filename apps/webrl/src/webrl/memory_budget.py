"""What a run takes of memory, disk and network, counted from its configuration and the policy's own.

Invariants:
    * no weight is read: shapes come from the model's class on torch's meta device;
    * weights, gradients and moments are exact; what a micro-batch takes beyond them is an estimate,
      which a test compares with what was measured on a GPU.

Legend: N ranks, T tokens of a micro-batch, H hidden size, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webrl.config import WebRLConfig

CONTEXT_BYTES = 1_500_000_000
"""A CUDA context with its kernels, and nccl's buffers."""
RANK_HOST_BYTES = 4_000_000_000
"""Libraries of a rank, and the largest weights while they are read."""
IMAGE_PATCHES = 4
"""Patches that become one token of a prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyShape:
    """Sizes of a policy, in numbers of weights unless said otherwise."""

    num_weights: int
    """All of them, tied ones once."""
    num_trained: int
    """Those that no frozen prefix names."""
    num_block: int
    """Those of the largest repeated block."""
    num_root: int
    """Those that are gathered for the whole of a pass: what lies in no repeated block."""
    num_root_trained: int
    """The trained ones among them."""
    text: Mapping[str, int]
    """`hidden`, `intermediate`, `layers`, `queries`, `keys`, `vocabulary`."""
    vision: Mapping[str, int]
    """`hidden` and `layers` of the vision tower; zeros without one."""
    is_vision_trained: bool
    """Whether activations of the vision tower are kept."""


@functools.cache
def read_shape(path: Path, frozen: tuple[str, ...] = ()) -> PolicyShape:
    """Return the sizes of a checkpoint from its `config.json` alone.

    Args:
        frozen: Prefixes of names of weights that are not trained.
    """
    # transformers takes seconds to import: only those pay for it who ask.
    import torch  # noqa: PLC0415
    from awrl_trainer.hf import build_model  # noqa: PLC0415
    from transformers import AutoConfig  # noqa: PLC0415

    config: Any = AutoConfig.from_pretrained(path)
    with torch.device("meta"):
        model = build_model(config)
    classes = set[str](getattr(model, "_no_split_modules", None) or ())
    blocks = {name for name, part in model.named_modules() if type(part).__name__ in classes}
    sizes = dict.fromkeys(blocks, 0)
    total = trained = root = root_trained = 0
    for name, weight in model.named_parameters():
        is_trained = not name.startswith(frozen) if frozen else True
        above = name.split(".")
        block = next((b for i in range(len(above)) if (b := ".".join(above[:i])) in blocks), None)
        total += weight.numel()
        trained += weight.numel() * is_trained
        if block is None:
            root += weight.numel()
            root_trained += weight.numel() * is_trained
        else:
            sizes[block] += weight.numel()
    text = config.get_text_config()
    vision = getattr(config, "vision_config", None)
    names = [name for name, _ in model.named_parameters() if ".visual." in name]
    head_size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return PolicyShape(
        num_weights=total,
        num_trained=trained,
        num_block=max(sizes.values(), default=0),
        num_root=root,
        num_root_trained=root_trained,
        text={
            "hidden": text.hidden_size,
            "intermediate": text.intermediate_size,
            "layers": text.num_hidden_layers,
            "queries": text.num_attention_heads * head_size,
            "keys": text.num_key_value_heads * head_size,
            "vocabulary": text.vocab_size,
        },
        vision={
            "hidden": getattr(vision, "hidden_size", 0),
            "layers": getattr(vision, "depth", 0),
        },
        is_vision_trained=any(not name.startswith(frozen) if frozen else True for name in names),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryBudget:
    """Bytes by what takes them."""

    rank_state: Mapping[str, int]
    """What a rank keeps on its device all the time."""
    rank_passes: Mapping[str, int]
    """What the largest moment of an update takes there besides, with `publish` for the other one."""
    rank_host: Mapping[str, int]
    """Host memory of a rank."""
    server: Mapping[str, int]
    """One device of an inference server, without the KV cache."""
    node: Mapping[str, int]
    """Host memory of the fullest node."""
    checkpoint: int
    """One complete checkpoint of the trainer and one of the policy."""
    publish: int
    """Weights that one update sends, to each server."""
    kv_per_token: int
    """KV cache of one token on one device of a server."""

    @property
    def rank_bytes(self) -> int:
        """Device memory of a rank at its largest moment."""
        passes = dict(self.rank_passes)
        publish = passes.pop("publish buckets")
        return sum(self.rank_state.values()) + max(sum(passes.values()), publish)


def count_memory(config: WebRLConfig, shape: PolicyShape) -> MemoryBudget:
    """Return what a run takes of each of its devices and nodes."""
    actor = config.actor
    ranks = config.allocation.role("actor").dims.d
    compute = 2 if actor.dtype == "bfloat16" else 4
    reference = 4 * shape.num_weights // ranks if actor.kl_ctl else 0
    moments = 8 * shape.num_trained // ranks
    offload = actor.optimizer.offload
    has_gpus = config.cluster.num_gpus > 0
    buckets = actor.publish_bucket_bytes * (2 if actor.overlap_publish else 1)
    weights = compute * shape.num_weights
    rank_state = {
        "weights": 4 * shape.num_weights // ranks,
        "gradients": 4 * shape.num_trained // ranks,
        "moments": 0 if offload and has_gpus else moments,
        "reference": reference,
        "CUDA": CONTEXT_BYTES if has_gpus else 0,
    }
    rank_host = {
        "moments": moments if offload and has_gpus else 0,
        "staged checkpoint": 4 * shape.num_weights // ranks + moments,
        "process": RANK_HOST_BYTES,
    }
    text = shape.text
    return MemoryBudget(
        rank_state=rank_state,
        rank_passes={
            **_passes(config, shape, ranks, compute),
            "publish buckets": min(buckets, 2 * weights),
        },
        rank_host=rank_host,
        server={
            "weights": weights // config.tp_size,
            "publish bucket": min(actor.publish_bucket_bytes, weights),
        },
        node=_node(config, sum(rank_host.values()), ranks) | {"staged snapshot": weights},
        checkpoint=4 * shape.num_weights + 8 * shape.num_trained + weights,
        publish=weights,
        kv_per_token=2 * compute * text["layers"] * text["keys"] // config.tp_size,
    )


def _passes(config: WebRLConfig, shape: PolicyShape, ranks: int, compute: int) -> dict[str, int]:
    """Return what the largest moment of forward and backward passes takes beside a rank's state.

    It is the head's, where the logits are; a block's, where its activations are computed again; or
    the end's, where the gradients of the root meet.
    """
    actor, text = config.actor, shape.text
    tokens, hidden = actor.max_tokens_per_mb, text["hidden"]
    per_token = 4 * hidden + 3 * text["queries"] + 4 * text["keys"] + 3 * text["intermediate"]
    # Uncompiled norms and activations keep copies in float32 besides.
    block = compute * tokens * per_token * (1 if actor.compile_blocks else 2)
    share = actor.checkpointed_block_share if actor.gradient_checkpointing else 0.0
    kept = int(text["layers"] * (compute * tokens * hidden * share + block * (1 - share)))
    patches = IMAGE_PATCHES * tokens
    vision = compute * patches * shape.vision["hidden"] * shape.vision["layers"]
    kept += vision if shape.is_vision_trained else 0
    pixels = 4 * patches * 3 * 2 * 16 * 16 if shape.vision["layers"] else 0
    head = 8 * min(actor.num_head_tokens, tokens) * text["vocabulary"]
    head += 4 * hidden * text["vocabulary"]
    gathered = compute * shape.num_root
    blocks = 2 * compute * shape.num_block
    end = (compute + 4) * shape.num_root_trained + 4 * shape.num_root_trained // ranks
    moments = {
        "head": {"activations": kept + pixels, "logits": head},
        "block": {"activations": kept + pixels + block, "gathered blocks": blocks},
        "end": {"gradients of the root": end},
    }
    largest = max(moments.values(), key=lambda parts: sum(parts.values()))
    return {**largest, "gathered root": gathered}


def _node(config: WebRLConfig, rank_host: int, ranks: int) -> dict[str, int]:
    """Return the host memory of the fullest node, each role spread evenly."""
    env, nodes = config.env, config.cluster.n_nodes
    per_node = min(ranks, config.cluster.n_gpus_per_node or ranks)
    slots = env.slots_per_worker
    browser = env.recycle_above_bytes or (2 << 30) + slots * (256 << 20)
    return {
        f"{per_node} ranks": per_node * rank_host,
        f"{-(-env.num_workers // nodes)} browsers at most": -(-env.num_workers // nodes) * browser,
        "pixel store": config.pixelstore.max_bytes // min(nodes, config.pixelstore.num_shards),
    }


def describe_memory(config: WebRLConfig) -> list[str]:
    """Return the budget as lines of text; one line where the policy is not here to be counted."""
    path = config.policy.path
    if path is None:
        return ["memory: a tiny policy, nothing to count"]
    if not (Path(path) / "config.json").is_file():
        return [f"memory: not counted, since {path} has no config.json here"]
    shape = read_shape(Path(path), config.actor.frozen_modules)
    budget = count_memory(config, shape)
    free = device_bytes(config)
    room = f" of {_gb(free)}" if free else ""
    cache = ""
    if free:
        left = int(free * config.inference.mem_fraction_static) - budget.server["weights"]
        cache = f", KV cache of {max(0, left) // budget.kv_per_token:,} tokens"
    buckets = -(-budget.publish // config.actor.publish_bucket_bytes)
    keep = config.checkpoint.keep + 1
    return [
        "memory, in GB (state exact, passes estimated from config.json; no weights were read)",
        f"  trainer rank, device {_gb(budget.rank_bytes)}{room}: "
        + _parts({**budget.rank_state, **budget.rank_passes}),
        f"  trainer rank, host {_gb(sum(budget.rank_host.values()))}: {_parts(budget.rank_host)}",
        f"  server, each device{room}: {_parts(budget.server)}{cache}",
        f"  fullest node, host {_gb(sum(budget.node.values()))}: {_parts(budget.node)}",
        f"  a checkpoint {_gb(budget.checkpoint)}, {keep} on disk at most "
        f"{_gb(keep * budget.checkpoint)}",
        f"  a publish {_gb(budget.publish)} to each server in about {buckets} buckets",
    ]


def device_bytes(config: WebRLConfig) -> int | None:
    """Return the memory of one GPU: the configured one, else what is seen here; None without any."""
    if config.cluster.num_gpus == 0 or config.cluster.gpu_memory_bytes is not None:
        return config.cluster.gpu_memory_bytes if config.cluster.num_gpus else None
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_properties(0).total_memory


def find_shortages(config: WebRLConfig) -> tuple[list[str], list[str]]:
    """Return what a device can not hold for certain, and what it can not hold by estimate."""
    path, free = config.policy.path, device_bytes(config)
    if path is None or free is None or not (Path(path) / "config.json").is_file():
        return [], []
    budget = count_memory(config, read_shape(Path(path), config.actor.frozen_modules))
    certain: list[str] = []
    likely: list[str] = []
    is_shared = config.allocation.shares_devices("rollout", "actor")
    rank_free = int(free * (1 - config.inference.mem_fraction_static)) if is_shared else free
    state = sum(budget.rank_state.values())
    what = f"a trainer rank needs {_gb(state)} GB for {_parts(budget.rank_state)}"
    if state > rank_free:
        certain.append(f"{what} before any activation, of {_gb(rank_free)}")
    elif budget.rank_bytes > rank_free:
        passes = _parts(budget.rank_passes)
        likely.append(
            f"a trainer rank needs about {_gb(budget.rank_bytes)} GB of {_gb(rank_free)}: "
            f"{_gb(state)} of state and {passes}"
        )
    pool = int(free * config.inference.mem_fraction_static)
    weights = budget.server["weights"]
    if config.inference_backend == "sglang" and pool <= weights:
        certain.append(f"a server's pool of {_gb(pool)} GB can not hold {_gb(weights)} of weights")
    elif (pool - weights) // budget.kv_per_token < config.inference.context_length:
        likely.append("a server's KV cache holds less than one inference.context_length")
    return certain, likely


def _parts(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {_gb(size)}" for name, size in parts.items() if size)


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f}"
