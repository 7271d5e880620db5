"""The published configuration keys: what they are called in the libraries, what goes together.

This is the one place where the two vocabularies meet. `PUBLISHED_KEYS` maps each key that users
of the published system know onto the library argument that it decides. `PROXIMAL_CHOICES` and
`SERVER_CHOICES` list the combinations that mean something; every other one is refused.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from webrl.config.model_sections import ActorSection
from webrl.errors import Problem


class PublishedKey(NamedTuple):
    """One key of the published configuration."""

    key: str
    """Spelled exactly as published."""
    owner: str
    """Import name of the package whose argument it decides; `webrl` itself for the rest."""
    name: str
    """What that package calls it."""


PUBLISHED_KEYS: tuple[PublishedKey, ...] = (
    PublishedKey("scheduler.type", "webrl", "RayScheduler"),
    PublishedKey("allocation_mode", "webrl", "setup_mixed_layout"),
    PublishedKey(
        "cluster.n_inference_servers", "webrl", "servers of the role rollout, or SyncPool"
    ),
    PublishedKey(
        "rollout.max_head_offpolicyness", "awrl_staleness", "StalenessConfig.max_off_policyness"
    ),
    PublishedKey(
        "rollout.max_concurrent_rollouts", "awrl_staleness", "StalenessConfig.max_concurrent"
    ),
    PublishedKey(
        "rollout.consumer_batch_size", "awrl_staleness", "StalenessConfig.consumer_batch_size"
    ),
    PublishedKey("test_rollout.enabled", "webrl", "EvaluationManager"),
    PublishedKey("test_rollout.n_gpus", "webrl", "servers of the role test-rollout"),
    PublishedKey(
        "weight_update_mode", "webrl", "WeightPublisher: broadcast, or a snapshot that servers load"
    ),
    PublishedKey("actor.recompute_logprob", "awrl_trainer", "LossConfig.proximal_method"),
    PublishedKey("actor.use_decoupled_loss", "awrl_trainer", "LossConfig.use_decoupled_loss"),
    PublishedKey("actor.prox_logp_method", "awrl_trainer", "LossConfig.proximal_method"),
    PublishedKey("actor.behav_imp_weight_cap", "awrl_trainer", "LossConfig.weight_cap"),
)
"""Every published key and the library argument that it decides."""


class PublishedValue(NamedTuple):
    """One hyper-parameter of the published 64-GPU run, and where `webgym_48_16` holds it."""

    name: str
    """What the published configuration calls it."""
    published: str
    """Its value there, as people write it."""
    key: str
    """The key here; empty for what has none."""
    value: object
    """What `webgym_48_16` holds."""
    note: str = ""
    """How one becomes the other, or why they differ."""


_DEFAULT = "the published optimizer's default"
PUBLISHED_VALUES: tuple[PublishedValue, ...] = (
    PublishedValue(
        "allocation_mode",
        "sglang[rollout]:d48+fsdp[actor]:d16",
        "allocation_mode",
        "sglang[rollout]:d48+fsdp[actor]:d16",
    ),
    PublishedValue("cluster.n_nodes", "8", "cluster.n_nodes", 8),
    PublishedValue("cluster.n_gpus_per_node", "8", "cluster.n_gpus_per_node", 8),
    PublishedValue("scheduler.type", "ray", "scheduler.type", "ray"),
    PublishedValue("rollout.setup_timeout", "1800", "scheduler.startup_timeout_s", 1800.0),
    PublishedValue("weight_update_mode", "xccl", "weight_update_mode", "xccl"),
    PublishedValue(
        "rollout.max_concurrent_rollouts", "1280", "rollout.max_concurrent_rollouts", 1280
    ),
    PublishedValue("rollout.max_concurrent_per_worker", "32", "env.slots_per_worker", 32),
    PublishedValue("rollout.consumer_batch_size", "128", "rollout.consumer_batch_size", 128),
    PublishedValue("rollout.max_head_offpolicyness", "2", "rollout.max_head_offpolicyness", 2),
    PublishedValue("gconfig.n_samples", "8", "gconfig.n_samples", 8),
    PublishedValue("gconfig.max_new_tokens", "4096", "gconfig.max_new_tokens", 4096),
    PublishedValue("gconfig.max_tokens", "16384", "inference.context_length", 16384),
    PublishedValue("gconfig.temperature", "1", "gconfig.temperature", 1.0),
    PublishedValue("gconfig.top_p", "1", "gconfig.top_p", 1.0),
    PublishedValue("actor.dtype", "bfloat16", "actor.dtype", "bfloat16"),
    PublishedValue("actor.gradient_checkpointing", "true", "actor.gradient_checkpointing", True),
    PublishedValue("actor.mb_spec.max_tokens_per_mb", "16384", "actor.max_tokens_per_mb", 16384),
    PublishedValue("actor.optimizer.lr", "5e-6", "actor.optimizer.lr", 5e-6),
    PublishedValue("actor.optimizer.weight_decay", "0.01", "actor.optimizer.weight_decay", 0.01),
    PublishedValue("actor.optimizer.beta1", "0.9", "actor.optimizer.beta1", 0.9, _DEFAULT),
    PublishedValue("actor.optimizer.beta2", "0.999", "actor.optimizer.beta2", 0.999, _DEFAULT),
    PublishedValue("actor.optimizer.eps", "1e-8", "actor.optimizer.eps", 1e-8, _DEFAULT),
    PublishedValue(
        "actor.optimizer.lr_scheduler_type", "cosine", "actor.optimizer.schedule", "cosine"
    ),
    PublishedValue("total_train_steps", "300", "total_steps", 300),
    PublishedValue(
        "actor.optimizer.warmup_steps_proportion",
        "0.0167",
        "actor.optimizer.warmup_fraction",
        0.0167,
    ),
    PublishedValue("actor.optimizer.min_lr_ratio", "0.1", "actor.optimizer.min_lr_ratio", 0.1),
    PublishedValue(
        "actor.optimizer.gradient_clipping", "1.0", "actor.optimizer.max_grad_norm", 1.0
    ),
    PublishedValue("actor.ppo_n_minibatches", "2", "actor.ppo_n_minibatches", 2),
    PublishedValue("actor.ppo_n_epochs", "3", "actor.ppo_n_epochs", 3),
    PublishedValue("actor.eps_clip", "0.2", "actor.eps_clip", 0.2),
    PublishedValue("actor.c_clip", "3.0", "actor.c_clip", 3.0),
    PublishedValue("actor.behav_imp_weight_cap", "5.0", "actor.behav_imp_weight_cap", 5.0),
    PublishedValue(
        "tokens above behav_imp_weight_cap",
        "weight 0",
        "actor.importance",
        "token_mask",
    ),
    PublishedValue("actor.kl_ctl", "0.0", "actor.kl_ctl", 0.0),
    PublishedValue("actor.use_decoupled_loss", "true", "actor.use_decoupled_loss", True),
    PublishedValue("actor.recompute_logprob", "true", "actor.recompute_logprob", True),
    PublishedValue("actor.prox_logp_method", "recompute", "actor.prox_logp_method", "recompute"),
    PublishedValue("actor.reward_norm", "group", "actor.group_advantage_norm", "mean_std"),
    PublishedValue("actor.step_adv_const_length", "10", "actor.step_adv_const_length", 10),
    PublishedValue("loss aggregation", "token mean", "actor.loss_aggregation", "token_mean"),
    PublishedValue("sglang.mem_fraction_static", "0.75", "inference.mem_fraction_static", 0.75),
    PublishedValue("sglang.max_running_requests", "48", "inference.max_running_requests", 48),
    PublishedValue(
        "SGLANG_VLM_CACHE_SIZE_MB",
        "8192",
        "",
        "0",
        "differs: features of images seen before an update would be those of old weights",
    ),
    PublishedValue("webgym.action space", "coordinates", "env.action_mode", "coordinates"),
    PublishedValue("webgym.history_window", "1", "agent.images", 1),
    PublishedValue("webgym.operation_timeout", "120 s", "env.action_timeout_s", 120.0),
    PublishedValue("webgym.episode_timeout", "45 min", "env.episode_timeout_s", 2700.0),
    PublishedValue(
        "webgym.max_retries", "2", "rollout.max_attempts", 3, "the first start counts here"
    ),
    PublishedValue("webgym.instance_lifetime", "60 min", "env.recycle_after_s", 3600.0),
    PublishedValue("recover.freq_secs", "1200", "checkpoint.save_every_s", 1200.0),
    PublishedValue("judge model", "gemini-2.5-flash", "judge.model", "gemini-2.5-flash"),
    PublishedValue("judge screenshots", "48", "judge.max_screenshots", 48),
    PublishedValue("test_rollout.enabled", "false", "test_rollout.enabled", False),
    PublishedValue("test_rollout.n_gpus", "8", "test_rollout.n_gpus", 8),
    PublishedValue("test_rollout.greedy", "true", "test_rollout.temperature", 0.0, "0 is greedy"),
    PublishedValue(
        "test_rollout.max_concurrent_per_gpu",
        "24",
        "test_rollout.max_concurrent",
        192,
        "8 GPUs together",
    ),
)
"""The published run's hyper-parameters; the reference configuration is held to them by a test."""


class ProximalChoice(NamedTuple):
    """One valid combination of the three `actor` keys that say where the proximal policy comes from."""

    use_decoupled_loss: bool
    recompute_logprob: bool
    prox_logp_method: Literal["recompute", "loglinear", "metrics"]
    meaning: str
    """What the run then does."""


PROXIMAL_CHOICES: tuple[ProximalChoice, ...] = (
    ProximalChoice(
        True,
        True,
        "recompute",
        "decoupled loss; proximal log-probs from a forward pass at step start",
    ),
    ProximalChoice(
        True,
        True,
        "metrics",
        "as recompute, and the error of the log-linear approximation is reported",
    ),
    ProximalChoice(
        True,
        False,
        "loglinear",
        "decoupled loss; proximal log-probs approximated without a forward pass",
    ),
    ProximalChoice(
        False,
        False,
        "recompute",
        "coupled loss (plain PPO) on the sampler's log-probs; no proximal policy",
    ),
    ProximalChoice(
        False,
        True,
        "recompute",
        "coupled loss on log-probs from a forward pass at step start, not the sampler's",
    ),
)
"""The valid combinations; coupled ones leave `prox_logp_method` at its default, unused."""


class ServerChoice(NamedTuple):
    """One valid combination of `cluster.n_inference_servers` and the operator between roles."""

    is_synchronous: bool
    """Whether `cluster.n_inference_servers` is 0."""
    operator: Literal["+", "|"]
    """What joins rollout and actor in `allocation_mode`."""
    meaning: str
    """What the run then does."""


SERVER_CHOICES: tuple[ServerChoice, ...] = (
    ServerChoice(
        True, "|", "synchronous: generate a batch, train on it, repeat, on shared devices"
    ),
    ServerChoice(False, "+", "asynchronous: servers and trainer on devices of their own"),
    ServerChoice(
        False, "|", "asynchronous on shared devices, weights published over gloo (development)"
    ),
)
"""The valid combinations; a positive number of servers must equal the rollout's `d`."""


def proximal_problems(actor: ActorSection) -> list[Problem]:
    """Return what is contradictory among the loss keys of `actor`; keys are relative to it."""
    problems: list[Problem] = []
    chosen = (actor.use_decoupled_loss, actor.recompute_logprob, actor.prox_logp_method)
    valid = [row[:3] for row in PROXIMAL_CHOICES]
    if chosen not in valid:
        shown = f"{str(chosen[0]).lower()}, {str(chosen[1]).lower()}, {chosen[2]!r}"
        rows = "; ".join(f"{str(d).lower()}, {str(r).lower()}, {m!r}" for d, r, m in valid)
        message = (
            "with recompute_logprob and prox_logp_method must be a valid combination, got "
            f"{shown}. Valid ones: {rows}."
        )
        problems.append(Problem(key="use_decoupled_loss", message=message))
    weight_keys = {
        "behav_imp_weight_cap": actor.behav_imp_weight_cap,
        "behav_imp_weight_floor": actor.behav_imp_weight_floor,
    }
    for key, value in weight_keys.items():
        if not actor.use_decoupled_loss and value is not None:
            message = (
                f"must be unset with use_decoupled_loss = false, got {value}. Only "
                "the decoupled loss has such a weight: remove it."
            )
            problems.append(Problem(key=key, message=message))
    return problems


def server_problems(num_servers: int, rollout_d: int, *, is_shared: bool) -> list[Problem]:
    """Return what is contradictory between the server count and the allocation.

    Args:
        num_servers: `cluster.n_inference_servers`.
        rollout_d: the `d` of the role `rollout`.
        is_shared: whether rollout and actor are joined by `|`.
    """
    key = "cluster.n_inference_servers"
    if num_servers == 0 and not is_shared:
        fix = f"Join the roles by '|', or set it to {rollout_d} for asynchronous training."
        message = (
            "must be > 0 when rollout and actor have devices of their own ('+'), got 0 "
            f"(synchronous training shares devices). {fix}"
        )
        return [Problem(key=key, message=message)]
    if num_servers not in (0, rollout_d):
        fix = f"Set it to {rollout_d}, or write d{num_servers} for rollout."
        message = (
            f"must equal the rollout's d in allocation_mode ({rollout_d}), got {num_servers}. {fix}"
        )
        return [Problem(key=key, message=message)]
    return []
