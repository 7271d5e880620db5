"""What `--dry-run` prints: roles, devices, capacity, warnings."""

from __future__ import annotations

from webrl.allocation import Role
from webrl.config.combinations import config_warnings
from webrl.config.published import PROXIMAL_CHOICES, SERVER_CHOICES
from webrl.config.run import WebRLConfig

__all__ = ["describe_plan"]


def describe_plan(config: WebRLConfig) -> str:
    """Return the plan of a run as lines of text: who runs where, how much, how stale."""
    lines = ["roles", *_role_lines(config), "", "capacity", *_capacity_lines(config)]
    lines += ["", "modes", *_mode_lines(config)]
    warnings = config_warnings(config)
    if warnings:
        lines += ["", "warnings", *(f"  {warning}" for warning in warnings)]
    return "\n".join(lines)


def _backend(config: WebRLConfig, role: Role) -> str:
    return config.inference_backend if role.name == "rollout" else role.backend


def _role_lines(config: WebRLConfig) -> list[str]:
    allocation = config.allocation
    unit = "GPU" if config.cluster.num_gpus else "CPU process"
    rows = [
        (role.name, _backend(config, role), role.dims.num_devices, _range_text(role.devices))
        for role in allocation.roles
    ]
    total = allocation.num_devices
    if config.test_rollout.enabled:
        count = config.test_rollout.n_gpus
        devices = range(total, total + count) or range(config.num_test_servers)
        rows.append(("test-rollout", config.inference_backend, len(devices), _range_text(devices)))
        total += count
    lines = [
        f"  {name:<13} {backend:<9} {count:>4} {_plural(unit, count):<14} devices {devices}"
        for name, backend, count, devices in rows
    ]
    room = f" of {config.cluster.num_gpus} in the cluster" if config.cluster.num_gpus else ""
    lines.append(f"  total         {'':<9} {total:>4} {_plural(unit, total)}{room}")
    env = config.env
    lines.append(
        f"  rollout workers {env.num_workers} x {env.slots_per_worker} slots = {env.num_slots}"
    )
    return lines


def _plural(unit: str, count: int) -> str:
    if count == 1:
        return unit
    return unit + ("es" if unit.endswith("s") else "s")


def _range_text(devices: range) -> str:
    return str(devices[0]) if len(devices) == 1 else f"{devices[0]}-{devices[-1]}"


def _capacity_lines(config: WebRLConfig) -> list[str]:
    batch, eta = config.rollout.consumer_batch_size, config.off_policyness_bound
    running = min(config.capacity, config.rollout.max_concurrent_rollouts, config.env.num_slots)
    return [
        f"  batch B = {batch} episodes = {config.groups_per_batch} groups x "
        f"{config.gconfig.n_samples}",
        f"  (eta + 1) * B = ({eta} + 1) * {batch} = {config.capacity} episodes in flight at most",
        f"  at most {running} of them run at one moment",
    ]


def _mode_lines(config: WebRLConfig) -> list[str]:
    actor = config.actor
    is_shared = config.allocation.shares_devices("rollout", "actor")
    server = next(
        row.meaning
        for row in SERVER_CHOICES
        if row.is_synchronous == config.is_synchronous and (row.operator == "|") == is_shared
    )
    loss = next(
        row.meaning
        for row in PROXIMAL_CHOICES
        if (row.use_decoupled_loss, row.recompute_logprob, row.prox_logp_method)
        == (actor.use_decoupled_loss, actor.recompute_logprob, actor.prox_logp_method)
    )
    publish = (
        f"xccl, broadcast over {config.update_backend}"
        if config.weight_update_mode == "xccl"
        else "disk, a checkpoint for each update"
    )
    return [f"  generation: {server}", f"  loss: {loss}", f"  weight updates: {publish}"]
