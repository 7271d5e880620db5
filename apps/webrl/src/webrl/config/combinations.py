"""Checks that involve more than one section, and warnings for knobs that can never bind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from webrl.allocation import Allocation, Role
from webrl.config.environment import EnvConfig, PolicyInitSection
from webrl.config.published import proximal_problems, server_problems
from webrl.errors import ConfigError, Problem

if TYPE_CHECKING:
    from webrl.config.run import WebRLConfig

__all__ = [
    "check_dataset_size",
    "combination_problems",
    "config_warnings",
    "estimate_screenshot_bytes",
]

_BYTES_PER_PIXEL = {"jpeg": 0.2, "png": 1.0}
"""Upper end of what busy pages take: 150 KB for a JPEG of 1280 x 720, five times that for a PNG."""
_LARGEST_VIEWPORT = (1280, 720)
"""What a task may bring when the configuration leaves the page size to it."""
_SCREENSHOT_FLOOR_BYTES = 2048
"""Headers and tables of the smallest encoded picture, with some room."""


def estimate_screenshot_bytes(env: EnvConfig) -> int:
    """Return an upper estimate of one stored screenshot, in bytes."""
    width, height = _LARGEST_VIEWPORT
    pixels = (env.viewport_width or width) * (env.viewport_height or height)
    return int(pixels * _BYTES_PER_PIXEL[env.screenshot_format]) + _SCREENSHOT_FLOOR_BYTES


def combination_problems(config: WebRLConfig, allocation: Allocation) -> list[Problem]:
    """Return every contradiction between sections of `config`."""
    problems = _role_problems(allocation)
    if not problems:
        is_shared = allocation.shares_devices("rollout", "actor")
        rollout, actor = allocation.role("rollout"), allocation.role("actor")
        problems += server_problems(
            config.cluster.n_inference_servers, rollout.dims.d, is_shared=is_shared
        )
        problems += _device_problems(config, allocation)
        problems += _batch_problems(config, actor.dims.d)
    problems += [problem.under("actor") for problem in proximal_problems(config.actor)]
    problems += _task_problems(config)
    problems += _room_problems(config)
    return problems


def _role_problems(allocation: Allocation) -> list[Problem]:
    """`rollout` generates, `actor` trains, each data parallel only, and there are no others."""
    problems: list[Problem] = []

    def note(rule: str, got: str, fix: str) -> None:
        problems.append(Problem(key="allocation_mode", message=f"must {rule}, got {got}. {fix}"))

    for name, kind, example in (
        ("rollout", "inference", "sglang[rollout]:d1"),
        ("actor", "training", "fsdp[actor]:d1"),
    ):
        role = allocation.find(name)
        if role is None:
            names = ", ".join(repr(other.name) for other in allocation.roles)
            note(f"have a role named {name!r}", f"only {names}", f"Write e.g. {example}.")
        elif role.kind != kind:
            note(f"give {name!r} an {kind} backend", repr(role.backend), f"Write e.g. {example}.")
    for role in allocation.roles:
        if role.name not in ("rollout", "actor"):
            note(
                "have the roles 'rollout' and 'actor' only",
                repr(role.name),
                "The test rollout is sized by test_rollout.n_gpus.",
            )
        elif role.dims.num_devices != role.dims.d:
            note(f"give {role.name!r} data parallelism only", _dims_text(role), _dims_fix(role))
    return problems


def _dims_text(role: Role) -> str:
    dims = role.dims
    letters = (("d", dims.d), ("t", dims.t), ("p", dims.p), ("c", dims.c))
    return "".join(f"{letter}{count}" for letter, count in letters if count > 1 or letter == "d")


def _dims_fix(role: Role) -> str:
    return f"Write {role.backend}[{role.name}]:d{role.dims.num_devices} for the same devices."


def _device_problems(config: WebRLConfig, allocation: Allocation) -> list[Problem]:
    """All roles together fit the cluster's GPUs; on CPUs any number of processes may run."""
    available = config.cluster.num_gpus
    if available == 0:
        return []
    test = config.test_rollout.n_gpus if config.test_rollout.enabled else 0
    needed = allocation.num_devices + test
    if needed <= available:
        return []
    message = (
        f"must fit the cluster's {available} GPUs ({config.cluster.n_nodes} nodes x "
        f"{config.cluster.n_gpus_per_node}), got {needed} ({allocation.num_devices} by "
        f"allocation_mode + {test} by test_rollout.n_gpus). Shrink a role or raise cluster.n_nodes."
    )
    return [Problem(key="allocation_mode", message=message)]


def _batch_problems(config: WebRLConfig, num_ranks: int) -> list[Problem]:
    """One batch splits into whole groups, equal ranks, and non-empty mini-batches."""
    batch, group = config.rollout.consumer_batch_size, config.gconfig.n_samples
    key = "rollout.consumer_batch_size"
    problems: list[Problem] = []

    def divides(divisor: int, name: str) -> None:
        if batch % divisor:
            nearest = max(1, round(batch / divisor)) * divisor
            message = f"must be divisible by {name} ({divisor}), got {batch}. Use e.g. {nearest}."
            problems.append(Problem(key=key, message=message))

    divides(group, "gconfig.n_samples")
    divides(num_ranks, "the actor's d in allocation_mode")
    cuts = config.actor.ppo_n_minibatches
    if cuts > batch:
        message = f"must be <= rollout.consumer_batch_size ({batch}), got {cuts}. Use fewer."
        problems.append(Problem(key="actor.ppo_n_minibatches", message=message))
    if config.gconfig.max_new_tokens >= config.inference.context_length:
        message = (
            f"must be < inference.context_length ({config.inference.context_length}), got "
            f"{config.gconfig.max_new_tokens}. Leave room for the prompt and its screenshots."
        )
        problems.append(Problem(key="gconfig.max_new_tokens", message=message))
    return problems


def _task_problems(config: WebRLConfig) -> list[Problem]:
    names = [task.name for task in config.tasks]
    if not names:
        message = "must name at least one task, got none. List them with: webrl tasks."
        return [Problem(key="tasks", message=message)]
    problems: list[Problem] = []

    def note(key: str, message: str) -> None:
        problems.append(Problem(key=key, message=message))

    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        note("tasks", f"must name each task once, got {twice[0]!r} twice. Use `weight` instead.")
    if all(task.split == "test" for task in config.tasks):
        note("tasks", "must hold one to train on, got only split = 'test'. Add a task.")
    if config.test_rollout.enabled and all(task.split == "train" for task in config.tasks):
        note("tasks", "must hold one for the test rollout, got only split = 'train'. Add a task.")
    return problems + _judge_problems(config)


def _judge_problems(config: WebRLConfig) -> list[Problem]:
    """Tasks with a rubric have a judge, whose time is part of the episode's."""
    judged = [task.name for task in config.tasks if task.is_judged]
    if not judged:
        return []
    if config.judge.url is None:
        message = f"must be set for {judged[0]!r}, got nothing. Give the address of a judge."
        return [Problem(key="judge.url", message=message)]
    if config.judge.deadline_s < config.env.episode_timeout_s:
        return []
    message = (
        f"must be < env.episode_timeout_s ({config.env.episode_timeout_s:g}), got "
        f"{config.judge.deadline_s:g}: the verdict is part of the episode. Lower it."
    )
    return [Problem(key="judge.deadline_s", message=message)]


def _room_problems(config: WebRLConfig) -> list[Problem]:
    """The pixel store holds all episodes that may be in flight, or has a disk tier."""
    if not config.tasks:
        return []
    store = config.pixelstore
    room = store.max_bytes + (store.max_disk_bytes if store.disk_dir is not None else 0)
    # A start page and one screenshot after each action.
    pictures = max(task.most_steps for task in config.tasks) + 1
    needed = config.capacity * pictures * estimate_screenshot_bytes(config.env)
    if needed <= room:
        return []
    message = (
        f"must hold (eta + 1) * B = {config.capacity} episodes of up to {pictures} screenshots, "
        f"about {needed} bytes, got {room} bytes. Raise it, set pixelstore.disk_dir, or lower "
        "rollout.consumer_batch_size."
    )
    return [Problem(key="pixelstore.max_bytes", message=message)]


def check_dataset_size(config: WebRLConfig, num_tasks: int) -> None:
    """Refuse a finite task file that can not fill one batch with different tasks.

    Args:
        config: the run's configuration.
        num_tasks: different tasks at hand.

    Raises:
        ConfigError: there are fewer than the groups of one batch.
    """
    if num_tasks < config.groups_per_batch:
        message = (
            f"must hold at least {config.groups_per_batch} different tasks "
            f"(rollout.consumer_batch_size / gconfig.n_samples), got {num_tasks}. Add tasks or "
            "lower rollout.consumer_batch_size."
        )
        raise ConfigError([Problem(key="tasks", message=message)])


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
    if not config.is_synchronous and config.allocation.shares_devices("rollout", "actor"):
        warnings.append(
            f"allocation_mode = {config.allocation_mode!r}: servers and trainer share devices and "
            "slow each other; weights are published over gloo. Meant for development."
        )
    if config.judge.url is not None and not any(task.is_judged for task in config.tasks):
        warnings.append("judge has no effect: no task has a rubric (webgym:PATH).")
    if config.env.action_mode == "set_of_marks" and config.policy.path is None:
        warnings.append(
            "env.action_mode = 'set_of_marks': the tiny policy was warmed up on positions, its clicks "
            "are invalid here. Set policy.path."
        )
    if config.policy.path is not None and config.policy.init != PolicyInitSection():
        warnings.append("policy.init has no effect: policy.path is set.")
    if (
        config.env.screenshot_format != "jpeg"
        and config.env.jpeg_quality != EnvConfig().jpeg_quality
    ):
        warnings.append(
            f"env.jpeg_quality has no effect with env.screenshot_format = "
            f"{config.env.screenshot_format!r}."
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
