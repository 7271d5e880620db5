"""What a run will do, for people: roles, devices, capacity, and keys that never take effect."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from webrl.allocation import Role
from webrl.config.published import PROXIMAL_CHOICES, SERVER_CHOICES
from webrl.config.run import WebRLConfig


class IdleKeys(NamedTuple):
    """Keys that decide nothing in one kind of run."""

    keys: tuple[str, ...]
    """Dotted names of keys or of whole sections."""
    is_idle: Callable[[WebRLConfig], bool]
    """Whether a run is of that kind."""
    reason: str
    """Why they decide nothing there."""


IDLE_KEYS: tuple[IdleKeys, ...] = (
    IdleKeys(
        ("rollout.max_concurrent_rollouts", "rollout.on_overrun"),
        lambda c: c.is_synchronous,
        "the run is synchronous (cluster.n_inference_servers = 0), its slots are all that bounds it",
    ),
    IdleKeys(
        ("inference.mem_fraction_static", "inference.sglang_args"),
        lambda c: c.inference_backend == "embedded",
        "the servers are embedded",
    ),
    IdleKeys(("actor.kl_estimator",), lambda c: c.actor.kl_ctl == 0, "actor.kl_ctl is 0"),
    IdleKeys(
        ("actor.checkpointed_block_share",),
        lambda c: not c.actor.gradient_checkpointing,
        "actor.gradient_checkpointing is false",
    ),
    IdleKeys(
        ("actor.optimizer.min_lr_ratio",),
        lambda c: c.actor.optimizer.schedule == "constant",
        "actor.optimizer.schedule is 'constant'",
    ),
    IdleKeys(
        ("actor.publish_bucket_bytes", "actor.overlap_publish"),
        lambda c: c.weight_update_mode == "disk",
        "weight_update_mode is 'disk'",
    ),
    IdleKeys(
        ("pixelstore.max_disk_bytes",),
        lambda c: c.pixelstore.disk_dir is None,
        "pixelstore.disk_dir is unset",
    ),
    IdleKeys(("policy.init",), lambda c: c.policy.path is not None, "policy.path is set"),
    IdleKeys(
        ("policy.init.batch_size", "policy.init.lr"),
        lambda c: c.policy.path is None and c.policy.init.num_updates == 0,
        "policy.init.num_updates is 0",
    ),
    IdleKeys(
        ("agent.history.num_thoughts",),
        lambda c: c.agent.format == "direct",
        "agent.format is 'direct'",
    ),
    IdleKeys(
        ("agent.history.memory_chars",),
        lambda c: c.agent.format != "reasoning",
        "agent.format is not 'reasoning'",
    ),
    IdleKeys(
        ("judge",),
        lambda c: not any(task.is_judged for task in c.tasks),
        "no task has a rubric (webgym:PATH)",
    ),
    IdleKeys(
        ("step_limits",),
        lambda c: all(task.max_steps is not None for task in c.tasks if task.is_judged),
        "no task of webgym:PATH goes without max_steps",
    ),
    IdleKeys(
        ("judge.token_limit_field",),
        lambda c: c.judge.max_answer_tokens is None,
        "judge.max_answer_tokens is unset",
    ),
    IdleKeys(
        ("env.jpeg_quality",),
        lambda c: c.env.screenshot_format != "jpeg",
        "env.screenshot_format is 'png'",
    ),
    IdleKeys(
        ("env.headless", "env.recycle_above_bytes"),
        lambda c: bool(c.env.browsers),
        "the browsers run elsewhere (env.browsers)",
    ),
    IdleKeys(("env.browser_network",), lambda c: not c.env.browsers, "env.browsers is empty"),
    IdleKeys(
        ("env.proxy_credentials_env", "env.proxy_resolves_names"),
        lambda c: c.env.proxy is None,
        "env.proxy is unset",
    ),
    IdleKeys(
        ("env.page_latency_cv",), lambda c: c.env.page_latency_s == 0, "env.page_latency_s is 0"
    ),
    IdleKeys(
        (
            "test_rollout.n_gpus",
            "test_rollout.num_seeds",
            "test_rollout.num_final_seeds",
            "test_rollout.num_workers",
            "test_rollout.interval_s",
        ),
        lambda c: not c.test_rollout.enabled,
        "test_rollout.enabled is false",
    ),
)
"""What is said at the start of a run about keys that were set in vain. Such a key is not refused,
since one switch of a published configuration (`cluster.n_inference_servers = 0`) idles several."""


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
    if config.tp_size > 1:
        counts = {
            "rollout": allocation.role("rollout").dims.d,
            "test-rollout": config.num_test_servers,
        }
        for index, (name, *_) in enumerate(rows):
            if name in counts:
                lines[index] += f", {_servers_text(counts[name])} of {config.tp_size}"
    room = f" of {config.cluster.num_gpus} in the cluster" if config.cluster.num_gpus else ""
    lines.append(f"  total         {'':<9} {total:>4} {_plural(unit, total)}{room}")
    env = config.env
    lines.append(
        f"  rollout workers {env.num_workers} x {env.slots_per_worker} slots = {env.num_slots}"
    )
    return lines


def _servers_text(count: int) -> str:
    return f"{count} {_plural('server', count)}"


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
        if row[:2] == (config.is_synchronous, "|" if is_shared else "+")
    )
    chosen = (actor.use_decoupled_loss, actor.recompute_logprob, actor.prox_logp_method)
    loss = next(row.meaning for row in PROXIMAL_CHOICES if row[:3] == chosen)
    publish = (
        f"xccl, broadcast over {config.update_backend}"
        if config.weight_update_mode == "xccl"
        else "disk, a checkpoint for each update"
    )
    return [f"  generation: {server}", f"  loss: {loss}", f"  weight updates: {publish}"]


def config_warnings(config: WebRLConfig) -> list[str]:
    """Return one sentence for each knob that can never bind or has no effect."""
    return [*_bound_warnings(config), *_effect_warnings(config)]


def _bound_warnings(config: WebRLConfig) -> list[str]:
    limit, slots = config.rollout.max_concurrent_rollouts, config.env.num_slots
    warnings: list[str] = []
    if limit > config.capacity:
        warnings.append(
            f"rollout.max_concurrent_rollouts = {limit} can never bind: staleness admits at most "
            f"(eta + 1) * B = {config.capacity} episodes."
        )
    if limit > slots:
        warnings.append(
            f"rollout.max_concurrent_rollouts = {limit} can never bind: the workers have {slots} "
            "slots (env.num_workers * env.slots_per_worker)."
        )
    if slots > min(limit, config.capacity):
        warnings.append(
            f"env.slots_per_worker = {config.env.slots_per_worker}: {slots} slots in all can never "
            f"be full, at most {min(limit, config.capacity)} episodes run."
        )
    return warnings


def _effect_warnings(config: WebRLConfig) -> list[str]:
    warnings: list[str] = []
    eta = config.rollout.max_head_offpolicyness
    if config.is_synchronous and eta > 0:
        warnings.append(
            f"rollout.max_head_offpolicyness = {eta} has no effect: the run is synchronous "
            "(cluster.n_inference_servers = 0), so nothing is stale."
        )
    warnings += _idle_warnings(config)
    if not config.is_synchronous and config.allocation.shares_devices("rollout", "actor"):
        warnings.append(
            f"allocation_mode = {config.allocation_mode!r}: servers and trainer share devices and "
            "slow each other; weights are published over gloo. Meant for development."
        )
    if config.env.action_mode == "set_of_marks" and config.policy.path is None:
        warnings.append(
            "env.action_mode = 'set_of_marks': the tiny policy was warmed up on positions, its clicks "
            "are invalid here. Set policy.path."
        )
    if config.env.browsers and config.env.browser_network == "own":
        warnings.append(
            "env.browser_network = 'own': nothing of this run keeps pages away from private addresses; "
            "whoever runs the browsers has to."
        )
    if config.env.proxy is not None and config.env.proxy_resolves_names:
        warnings.append(
            "env.proxy_resolves_names = true: names are not looked up here, so only the proxy can keep "
            "pages away from the private addresses of its network."
        )
    if config.agent.format != "direct" and config.policy.path is None:
        warnings.append(
            f"agent.format = {config.agent.format!r}: the tiny policy was warmed up on 'direct' and "
            "knows no other form. Set policy.path."
        )
    if config.gconfig.top_p < 1:
        warnings.append(
            f"gconfig.top_p = {config.gconfig.top_p}: sampled log-probs are renormalised over the "
            "nucleus, the trainer's are not, so the behavior weights are biased."
        )
    if config.checkpoint.save_every > config.total_steps:
        warnings.append(
            f"checkpoint.save_every = {config.checkpoint.save_every} never comes due within "
            f"total_steps = {config.total_steps}: only the last update is saved."
        )
    return warnings


def _idle_warnings(config: WebRLConfig) -> list[str]:
    """Return one sentence for each key that was set and decides nothing in this run."""
    warnings = [
        f"{key} has no effect: {row.reason}."
        for row in IDLE_KEYS
        if row.is_idle(config)
        for key in row.keys
        if not _is_standard(config, key)
    ]
    drawn = [task for task in config.tasks if task.split != "test"]
    for task in config.tasks:
        if task.split == "train" and task.test_max_steps is not None:
            warnings.append(
                f"tasks.test_max_steps of {task.name!r} has no effect: split = 'train'."
            )
        if task.subset_seed and task.num_tasks is None:
            warnings.append(
                f"tasks.subset_seed of {task.name!r} has no effect: num_tasks is unset."
            )
        if task.weight != 1 and (task.split == "test" or len(drawn) == 1):
            rule = "split = 'test'" if task.split == "test" else "it is drawn alone"
            warnings.append(f"tasks.weight of {task.name!r} has no effect: {rule}.")
    return warnings


def _is_standard(config: WebRLConfig, key: str) -> bool:
    """Return whether a key of a section, or a whole section, holds what it does when unset."""
    name, *rest = key.split(".")
    section = getattr(config, name)
    return functools.reduce(getattr, rest, section) == functools.reduce(
        getattr, rest, type(section)()
    )
