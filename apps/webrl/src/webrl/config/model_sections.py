"""Sections of the configuration: the policy, its servers, its trainer.

The text beneath a field is what the key's documentation says.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from webrl.config.environment import variable_problems
from webrl.config.rules import (
    Count,
    Natural,
    NonNegative,
    Positive,
    Section,
    Share,
    Text,
    breach,
)
from webrl.errors import Problem

SGLANG_FLAGS_OF_A_RUN = {
    "--model": "policy.path",
    "--model-path": "policy.path",
    "--dtype": "actor.dtype",
    "--host": "inference.base_port; the address follows from the machines",
    "--port": "inference.base_port",
    "--random-seed": "seed",
    "--context-length": "inference.context_length",
    "--max-running-requests": "inference.max_running_requests",
    "--mem-fraction-static": "inference.mem_fraction_static",
    "--tp": "allocation_mode, such as sglang[rollout]:d24t2 for 24 servers of 2 GPUs",
    "--tp-size": "allocation_mode, such as sglang[rollout]:d24t2 for 24 servers of 2 GPUs",
    "--tensor-parallel-size": "allocation_mode, such as sglang[rollout]:d24t2 for 24 servers of 2 GPUs",
    "--api-key": "nothing: runs over several machines have a token of their own",
}
"""Arguments of SGLang that a run decides, and the key to use instead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyInitSection(Section):
    """How a tiny policy is made when `policy.path` is unset."""

    num_updates: Annotated[Natural, "Use 0 for random weights."] = 200
    """Optimizer steps of the warm-up on synthetic pages; 0 leaves random weights."""
    batch_size: Annotated[Count, "Typical value: 48."] = 48
    """Synthetic pages of one warm-up step."""
    lr: Annotated[Positive, "Typical value: 1e-3."] = 1e-3
    """Peak learning rate of the warm-up."""
    seed: Annotated[Natural, "Leave it out to use the run's seed."] | None = None
    """Seed of weights and pages; the run's seed when unset."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicySection(Section):
    """Where the policy comes from."""

    path: Annotated[Text, "Leave it out to make a tiny policy."] | None = None
    """Local folder of a Hugging Face checkpoint; a tiny one is made from `init` when unset."""
    init: PolicyInitSection = field(default_factory=PolicyInitSection)
    """How the tiny policy is made; used only without `path`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationSection(Section):
    """How actions are sampled, and how many siblings a task gets."""

    n_samples: Annotated[int, Meta(ge=2), "A group of one has no advantage: use 2 or more."] = 8
    """G: episodes of one group, whose rewards are normalised together."""
    temperature: Annotated[Positive, "Training must sample; use 1.0."] = 1.0
    """Sampling temperature; the trainer's log-probs use the same."""
    top_p: Annotated[float, Meta(gt=0, le=1), "Use 1.0 to keep all tokens."] = 1.0
    """Nucleus mass; below 1 sampled log-probs no longer match the trainer's."""
    max_new_tokens: Annotated[Count, "An action needs a token."] = 512
    """Most tokens of one action."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerSection(Section):
    """AdamW and its schedule."""

    lr: Annotated[Positive, "Give a positive learning rate, such as 5e-6."] = 5e-6
    """Peak learning rate."""
    beta1: Annotated[float, Meta(ge=0, lt=1), "Typical values: 0.9 and 0.95."] = 0.9
    """Decay of AdamW's first moment."""
    beta2: Annotated[float, Meta(ge=0, lt=1), "Typical values: 0.9 and 0.95."] = 0.95
    """Decay of AdamW's second moment."""
    eps: Annotated[Positive, "Typical value: 1e-8."] = 1e-8
    """AdamW's denominator floor."""
    weight_decay: Annotated[NonNegative, "Use 0 for none."] = 0.01
    """Decoupled weight decay."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of the learning rate after the warm-up, over `total_steps`."""
    warmup_fraction: Annotated[Share, "It is a share of total_steps."] = 0.0
    """Share of `total_steps` with a linearly rising rate."""
    min_lr_ratio: Annotated[Share, "It is a share of lr."] = 0.1
    """Floor of a falling schedule, as a share of `lr`."""
    max_grad_norm: Annotated[Positive, "Typical value: 1.0."] = 1.0
    """Global gradient norm above which gradients are scaled down."""
    offload: bool = False
    """Keep AdamW's moments in host memory: 8 bytes less of a GPU for each trained weight of a rank, at
    the price of moving them there and back in each optimizer step; updates are the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorSection(Section):
    """The update engine: loss, mini-batches, precision."""

    loss: Literal["ppo", "gspo", "cispo"] = "ppo"
    """Clipped ratios of tokens (`ppo`), of whole rows (`gspo`, published with `eps_clip = 3e-4`,
    `eps_clip_higher = 4e-4`, `loss_aggregation = "sequence_mean"`), or clipped ratios as constant
    weights, so that no token loses its gradient (`cispo`, published with `eps_clip = 1`)."""
    use_decoupled_loss: bool = True
    """Clip only current/proximal and weigh by proximal/behavior; false: one ratio, no weight."""
    recompute_logprob: bool = True
    """Run a forward pass at the start of each update: for the proximal log-probs, and in place of
    the sampler's when the loss is not decoupled."""
    prox_logp_method: Literal["recompute", "loglinear", "metrics"] = "recompute"
    """Where proximal log-probs come from; `metrics` recomputes and reports loglinear's error."""
    behav_imp_weight_cap: Annotated[Positive, "Leave it out for none."] | None = None
    """Bound on the weight proximal/behavior; none when unset. PPO never clips this weight."""
    behav_imp_weight_floor: Annotated[Positive, "Leave it out for none."] | None = None
    """Lower bound on the weight proximal/behavior; none when unset."""
    importance: Literal[
        "token_mask",
        "token_truncate",
        "sequence_mask",
        "sequence_truncate",
        "geometric_mask",
        "geometric_truncate",
        "seq_sum_k1",
        "seq_mean_k1",
    ] = "token_mask"
    """The weight is the token's ratio (`token_*`), the product of its row's ratios (`sequence_*`,
    as in TRL), or their geometric mean (`geometric_*`). Beyond cap or floor it is 0 (`*_mask`) or
    the bound (`*_truncate`). `seq_sum_k1` and `seq_mean_k1` (verl's words) keep the token's ratio
    and drop rows whose product or geometric mean lies outside. All but `token_mask` need a bound."""
    eps_clip: Annotated[float, Meta(gt=0, le=1), "Typical value: 0.2."] = 0.2
    """Lower clip distance of current/proximal, and the upper one unless `eps_clip_higher`."""
    eps_clip_higher: Annotated[Positive, "Leave it out to use eps_clip."] | None = None
    """Upper clip distance; `eps_clip` when unset."""
    c_clip: Annotated[float, Meta(gt=1), "Typical value: 3.0; leave it out for none."] | None = None
    """Dual-clip constant for negative advantages; off when unset, else > 1 + the upper distance."""
    entropy_coef: Annotated[NonNegative, "Use 0 for none."] = 0.0
    """Weight of the entropy bonus."""
    kl_ctl: Annotated[NonNegative, "Use 0 for none."] = 0.0
    """Weight of the KL term to the policy that training started from; 0 builds no reference."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """How that divergence is estimated per token, within +-10; `k1` has no gradient on average."""
    loss_aggregation: Literal["token_mean", "sequence_mean", "sequence_sum"] = "token_mean"
    """Mean over a mini-batch's tokens, over its rows' means, or over its rows' sums."""
    group_advantage_norm: Literal["mean_std", "mean"] = "mean_std"
    """`mean_std`: minus the group's mean, over its deviation; `mean`: minus the mean of the others."""
    ppo_n_minibatches: Annotated[Count, "Use 1 for one step."] = 1
    """Optimizer steps that one batch is cut into, each pass."""
    ppo_n_epochs: Annotated[Count, "Use 1 for one pass."] = 1
    """Passes over one batch."""
    step_adv_const_length: Annotated[Count, "Leave it out for token mean."] | None = None
    """k: divides the policy's loss, so that a step weighs 1/k whatever its episode's length."""
    max_tokens_per_mb: Annotated[Count, "Typical value: 16384."] = 16384
    """Token budget of one micro-batch on one rank, image tokens included."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Compute precision; master weights stay float32."""
    row_layout: Literal["shared_prefix", "packed", "padded"] = "shared_prefix"
    """Rows in a micro-batch: equal prompts computed once, all rows end to end, or padded lines."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""
    checkpointed_block_share: Annotated[Share, "1 recomputes every block."] = 1.0
    """Share of the blocks that `gradient_checkpointing` recomputes: less is faster and takes more."""
    compile_blocks: bool = False
    """Compile each block of the model; pays on a GPU after the first few batches."""
    frozen_modules: tuple[str, ...] = ()
    """Prefixes of parameter names that training leaves as they are, such as `model.visual`."""
    num_head_tokens: Annotated[Count, "Typical value: 4096."] = 4096
    """Trained tokens whose logits are in memory at one moment; more are computed in turns."""
    publish_bucket_bytes: Annotated[Count, "Typical value: 1073741824."] = 1073741824
    """Largest part of the weights that one broadcast carries; the trainer holds two in memory."""
    overlap_publish: bool = True
    """Gather the next part during a broadcast; false: one part in memory, and a longer pause."""
    num_threads: Annotated[Count, "Use 1 on a small machine."] | None = None
    """CPU threads of one rank; unset: 1, and 4 where ranks compute on GPUs and CPUs only prepare."""
    env_vars: tuple[str, ...] = ()
    """Environment variables of every rank, each written `NAME=value`, such as `NCCL_DEBUG=INFO`. No
    secrets: export those where Ray is started."""
    optimizer: OptimizerSection = field(default_factory=OptimizerSection)
    """AdamW and its schedule."""

    def contradictions(self) -> list[Problem]:
        """Bounds that pass each other, and options without effect."""
        problems = variable_problems(self.env_vars)
        upper = 1 + (self.eps_clip if self.eps_clip_higher is None else self.eps_clip_higher)
        if self.c_clip is not None and self.loss == "cispo":
            problems.append(
                breach("c_clip", "unset with loss = 'cispo'", self.c_clip, "Remove it.")
            )
        elif self.c_clip is not None and 1 < self.c_clip <= upper:
            rule = f"above 1 + the upper clip distance = {upper:g}"
            problems.append(breach("c_clip", rule, self.c_clip, "Typical value: 3.0."))
        cap, floor = self.behav_imp_weight_cap, self.behav_imp_weight_floor
        if cap is not None and floor is not None and floor >= cap:
            rule = f"below behav_imp_weight_cap = {cap:g}"
            problems.append(breach("behav_imp_weight_floor", rule, floor, "Lower it."))
        if cap is None and floor is None and self.importance != "token_mask":
            rule = f"set with importance = {self.importance!r}"
            remedy = "TRL takes 3 for rows, verl 2 for tokens."
            problems.append(breach("behav_imp_weight_cap", rule, None, remedy))
        return problems


@dataclass(frozen=True, kw_only=True, slots=True)
class InferenceSection(Section):
    """The inference servers; which program they run is said by `allocation_mode`."""

    backend: Literal["embedded", "sglang"] | None = None
    """Program of the servers; the one that `allocation_mode` names when unset."""
    base_port: int = 0
    """Port of the first server, the others take the next ones; any free when 0."""
    num_threads: Annotated[Count, "Use 1 on a small machine."] = 1
    """Threads of one `embedded` server on a CPU."""
    max_running_requests: Annotated[Count, "Typical value: 48."] = 48
    """Requests that one server decodes at one moment."""
    context_length: Annotated[Count, "Typical value: 16384."] = 16384
    """Longest prompt with its answer, in tokens; `max_new_tokens` must be below it. An `embedded`
    server takes the policy's own limit where that is less."""
    mem_fraction_static: Annotated[float, Meta(gt=0, lt=1), "Typical value: 0.75."] = 0.75
    """Share of the GPU that an `sglang` server takes for weights and KV cache."""
    sglang_args: str = ""
    """Further arguments of an `sglang` server, as on a command line: `--disable-cuda-graph`."""
    env_vars: tuple[str, ...] = ()
    """Environment variables of every server, each written `NAME=value`. No secrets: export those
    where Ray is started."""

    def contradictions(self) -> list[Problem]:
        """A port is one that anybody may open; arguments are words, and none that the run sets."""
        problems = variable_problems(self.env_vars)
        if self.base_port != 0 and not 1024 <= self.base_port <= 65000:
            rule = "0 or between 1024 and 65000"
            problems.append(breach("base_port", rule, self.base_port, "Use 0 for any."))
        try:
            flags = [word.partition("=")[0] for word in shlex.split(self.sglang_args)]
        except ValueError as error:
            rule = "words as on a command line"
            problems.append(breach("sglang_args", rule, self.sglang_args, f"{error}: fix it."))
            return problems
        taken = [flag for flag in flags if flag in SGLANG_FLAGS_OF_A_RUN]
        if taken:
            rule = "without arguments that the run sets itself"
            remedy = f"Use {SGLANG_FLAGS_OF_A_RUN[taken[0]]}."
            problems.append(breach("sglang_args", rule, taken[0], remedy))
        return problems

    def arguments(self, backend: str) -> tuple[str, ...]:
        """Return what a server is started with, beyond policy, address, port, seed and dtype."""
        values: dict[str, float] = {
            "--context-length": self.context_length,
            "--max-running-requests": self.max_running_requests,
        }
        if backend == "sglang":
            values["--mem-fraction-static"] = self.mem_fraction_static
        words = [word for flag, value in values.items() for word in (flag, str(value))]
        return (*words, *(shlex.split(self.sglang_args) if backend == "sglang" else ()))
