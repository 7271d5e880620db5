"""The published configuration keys: what they are called in the libraries, what goes together.

This is the one place where the two vocabularies meet. `PUBLISHED_KEYS` maps each key that users
of the published system know onto the library argument that it decides. `PROXIMAL_CHOICES` and
`SERVER_CHOICES` list the combinations that mean something; every other one is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from webrl.config.sections import ActorSection
from webrl.errors import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedKey:
    """One key of the published configuration."""

    key: str
    """Spelled exactly as published."""
    owner: str
    """Import name of the package whose argument it decides; `webrl` itself for the rest."""
    name: str
    """What that package calls it."""


def _key(key: str, owner: str, name: str) -> PublishedKey:
    return PublishedKey(key=key, owner=owner, name=name)


PUBLISHED_KEYS: tuple[PublishedKey, ...] = (
    _key("scheduler.type", "webrl", "RayScheduler"),
    _key("allocation_mode", "webrl", "setup_mixed_layout"),
    _key("cluster.n_inference_servers", "webrl", "servers of the role rollout, or SyncPool"),
    _key("rollout.max_head_offpolicyness", "awrl_staleness", "StalenessConfig.max_off_policyness"),
    _key("rollout.max_concurrent_rollouts", "awrl_staleness", "StalenessConfig.max_concurrent"),
    _key("rollout.consumer_batch_size", "awrl_staleness", "StalenessConfig.consumer_batch_size"),
    _key("test_rollout.enabled", "webrl", "TestRolloutManager"),
    _key("test_rollout.n_gpus", "webrl", "servers of the role test-rollout"),
    _key(
        "weight_update_mode", "webrl", "WeightPublisher: broadcast, or a snapshot that servers load"
    ),
    _key("actor.recompute_logprob", "awrl_trainer", "LossConfig.proximal_method"),
    _key("actor.use_decoupled_loss", "awrl_trainer", "LossConfig.use_decoupled_loss"),
    _key("actor.prox_logp_method", "awrl_trainer", "LossConfig.proximal_method"),
    _key("actor.behav_imp_weight_cap", "awrl_trainer", "LossConfig.behav_imp_weight_cap"),
)
"""Every published key and the library argument that it decides."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProximalChoice:
    """One valid combination of the three keys that say where the proximal policy comes from."""

    use_decoupled_loss: bool
    """Value of `actor.use_decoupled_loss`."""
    recompute_logprob: bool
    """Value of `actor.recompute_logprob`."""
    prox_logp_method: Literal["recompute", "loglinear", "metrics"]
    """Value of `actor.prox_logp_method`."""
    meaning: str
    """What the run then does."""


PROXIMAL_CHOICES: tuple[ProximalChoice, ...] = (
    ProximalChoice(
        use_decoupled_loss=True,
        recompute_logprob=True,
        prox_logp_method="recompute",
        meaning="decoupled loss; proximal log-probs from a forward pass at step start",
    ),
    ProximalChoice(
        use_decoupled_loss=True,
        recompute_logprob=True,
        prox_logp_method="metrics",
        meaning="as recompute, and the error of the log-linear approximation is reported",
    ),
    ProximalChoice(
        use_decoupled_loss=True,
        recompute_logprob=False,
        prox_logp_method="loglinear",
        meaning="decoupled loss; proximal log-probs approximated without a forward pass",
    ),
    ProximalChoice(
        use_decoupled_loss=False,
        recompute_logprob=False,
        prox_logp_method="recompute",
        meaning="plain (coupled) PPO on behavior log-probs; no proximal policy",
    ),
)
"""The valid combinations; the last one leaves `prox_logp_method` at its default, unused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerChoice:
    """One valid combination of `cluster.n_inference_servers` and the operator between roles."""

    is_synchronous: bool
    """Whether `cluster.n_inference_servers` is 0."""
    operator: Literal["+", "|"]
    """What joins rollout and actor in `allocation_mode`."""
    meaning: str
    """What the run then does."""


SERVER_CHOICES: tuple[ServerChoice, ...] = (
    ServerChoice(
        is_synchronous=True,
        operator="|",
        meaning="synchronous: generate a batch, train on it, repeat, on shared devices",
    ),
    ServerChoice(
        is_synchronous=False,
        operator="+",
        meaning="asynchronous: servers and trainer on devices of their own",
    ),
    ServerChoice(
        is_synchronous=False,
        operator="|",
        meaning="asynchronous on shared devices, weights published over gloo (development)",
    ),
)
"""The valid combinations; a positive number of servers must equal the rollout's `d`."""


def proximal_problems(actor: ActorSection) -> list[Problem]:
    """Return what is contradictory among the loss keys of `actor`; keys are relative to it."""
    problems: list[Problem] = []
    chosen = (actor.use_decoupled_loss, actor.recompute_logprob, actor.prox_logp_method)
    valid = [
        (row.use_decoupled_loss, row.recompute_logprob, row.prox_logp_method)
        for row in PROXIMAL_CHOICES
    ]
    if chosen not in valid:
        shown = f"{str(chosen[0]).lower()}, {str(chosen[1]).lower()}, {chosen[2]!r}"
        rows = "; ".join(f"{str(d).lower()}, {str(r).lower()}, {m!r}" for d, r, m in valid)
        message = (
            "with recompute_logprob and prox_logp_method must be a valid combination, got "
            f"{shown}. Valid ones: {rows}."
        )
        problems.append(Problem(key="use_decoupled_loss", message=message))
    if not actor.use_decoupled_loss and actor.behav_imp_weight_cap is not None:
        message = (
            f"must be unset with use_decoupled_loss = false, got {actor.behav_imp_weight_cap}. "
            "Plain PPO has no such weight: remove the cap."
        )
        problems.append(Problem(key="behav_imp_weight_cap", message=message))
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
