"""The published configuration keys: what they are called in the libraries, what goes together.

This is the one place where the two vocabularies meet. `PUBLISHED_KEYS` maps each key that users
of the published system know onto the library argument that it decides. `PROXIMAL_CHOICES` and
`SERVER_CHOICES` list the combinations that mean something; every other one is refused.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from webrl.config.sections import ActorSection
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
