"""From the run's configuration to what each component takes.

Whoever works in a run (servers, workers, ranks, pixel store, controller, supervisor, recorder) gets a
config of its own, made here or from single values, and never sees the run's. Besides this module
only what puts a run together reads published keys: `launch`, `Run`, and the evaluation of a run.
"""

from __future__ import annotations

import os
from pathlib import Path

from awrl_pixelstore import PixelStoreConfig
from awrl_rollout import ControllerConfig, FaultBreaker
from awrl_staleness import StalenessConfig
from awrl_trainer import ActorConfig, LossConfig, OptimizerConfig, PublisherConfig, SnapshotWriter

from webrl.agent import check_agent
from webrl.browser import BrowserConfig, Deadlines, UpstreamConfig
from webrl.cluster.network import LOCAL, NetworkConfig
from webrl.cluster.placement import RoleSpec
from webrl.config import WebRLConfig
from webrl.config.environment import parse_variables
from webrl.errors import ConfigError, Problem
from webrl.launch import run_tasks
from webrl.policy import PolicyProcessor, size_within
from webrl.rollout.task_stream import TaskStream
from webrl.rollout.worker import WorkerSpec
from webrl.rollout.workflow import WorkflowConfig
from webrl.servers.server_actor import ServerSpec
from webrl.tasks import Task
from webrl.training.actor_rank import EngineSpec

ROLLOUT = "rollout"
ACTOR = "actor"
TEST_ROLLOUT = "test-rollout"
WORKER = "rollout-worker"
TEST_WORKER = "test-worker"

GPU_RANK_THREADS = 4
"""For pictures and checksums, while the GPU computes."""
RANK_ENVIRONMENT = {"NCCL_CUMEM_ENABLE": "0"}
"""SGLang turns this off in its servers; a nccl group whose members differed in it hung in its first
broadcast."""

MEDIA_TYPES = {"png": "image/png", "jpeg": "image/jpeg"}
"""Media type of each screenshot format."""


def role_specs(config: WebRLConfig, num_cpus: float) -> list[RoleSpec]:
    """Return the roles with resources that fit a machine of `num_cpus` logical CPUs.

    Every process declares an equal share of the CPUs, at most one, so that all of them fit two cores;
    with `env.cpus_per_slot` a rollout worker declares that for each slot. On GPUs each server has
    as many devices as its tensor-parallel size, each rank has one, and joint ones are split evenly.
    """
    allocation = config.allocation
    is_shared = allocation.shares_devices(ROLLOUT, ACTOR)
    has_gpus = config.cluster.num_gpus > 0
    num_test = config.num_test_servers
    is_test_shared = num_test > 0 and config.test_rollout.n_gpus == 0
    counts = {
        ROLLOUT: allocation.role(ROLLOUT).dims.d,
        ACTOR: allocation.role(ACTOR).dims.d,
        TEST_ROLLOUT: num_test,
        WORKER: config.env.num_workers,
        TEST_WORKER: config.test_rollout.num_workers if num_test else 0,
    }
    slots = {WORKER: config.env.slots_per_worker, TEST_WORKER: config.test_rollout.max_concurrent}
    per_slot = config.env.cpus_per_slot
    given = {} if per_slot is None else {name: round(per_slot * n, 4) for name, n in slots.items()}
    rest = num_cpus - sum(counts[name] * cpus for name, cpus in given.items())
    num_others = sum(count for name, count in counts.items() if name not in given)
    # What is too little for the slots is refused when the roles are placed.
    share = int(100 * min(1.0, max(0.01, rest / num_others))) / 100
    cpus_of = dict.fromkeys(counts, share) | given
    gpus = 1.0 if has_gpus else 0.0
    # Ray counts devices in units of 1/10000.
    joint = int(10_000 * gpus / (1 + is_shared + is_test_shared)) / 10_000
    gpus_of = {
        ROLLOUT: joint * config.tp_size,
        ACTOR: joint if is_shared else gpus,
        TEST_ROLLOUT: (joint if is_test_shared else gpus) * config.tp_size,
    }
    sharers = {ACTOR: is_shared, TEST_ROLLOUT: is_test_shared}
    return [
        RoleSpec(
            name=name,
            num_workers=count,
            cpus_per_worker=cpus_of[name],
            gpus_per_worker=gpus_of.get(name, 0.0),
            colocate_with=ROLLOUT if sharers.get(name) else None,
            is_spread=has_gpus and name in slots,
            node_label=(config.env.node_label or "") if name in slots else "",
        )
        for name, count in counts.items()
        if count
    ]


def evaluation_role_specs(config: WebRLConfig, num_cpus: float) -> list[RoleSpec]:
    """Return servers and workers for `webrl eval`, on an equal share of the CPUs each, up to one."""
    num_servers = max(1, config.test_rollout.n_gpus // config.tp_size)
    num_workers = config.test_rollout.num_workers
    cpus = int(100 * min(1.0, num_cpus / (num_servers + num_workers))) / 100
    return [
        RoleSpec(
            name=TEST_ROLLOUT,
            num_workers=num_servers,
            cpus_per_worker=cpus,
            gpus_per_worker=float(config.tp_size) if config.cluster.num_gpus else 0.0,
        ),
        RoleSpec(
            name=TEST_WORKER,
            num_workers=num_workers,
            cpus_per_worker=cpus,
            node_label=config.env.node_label or "",
        ),
    ]


def staleness_config(config: WebRLConfig) -> StalenessConfig:
    """Return the pacing bounds."""
    return StalenessConfig(
        max_concurrent=config.rollout.max_concurrent_rollouts,
        consumer_batch_size=config.rollout.consumer_batch_size,
        max_off_policyness=config.off_policyness_bound,
    )


def controller_config(config: WebRLConfig) -> ControllerConfig:
    """Return the rollout controller's limits."""
    return ControllerConfig(
        on_overrun=config.rollout.on_overrun,
        max_fault_share=config.rollout.max_fault_share,
        # Beyond all runs of its slot an episode waits for a judge that is down.
        episode_deadline_s=2.0 * config.env.episode_timeout_s * config.rollout.max_attempts
        + (config.judge.max_outage_s if _is_judged(config) else 0.0),
        max_refills=config.rollout.max_attempts,
        outage_patience_s=config.rollout.outage_patience_s,
        min_members=2,
    )


def _is_judged(config: WebRLConfig) -> bool:
    return config.judge.url is not None and any(task.is_judged for task in config.tasks)


def fault_breaker(config: WebRLConfig) -> FaultBreaker:
    """Return what stops synchronous rounds, with the controller's limits."""
    limits = controller_config(config)
    return FaultBreaker(
        max_share=limits.max_fault_share,
        window=limits.fault_window,
        patience_s=limits.outage_patience_s,
    )


def task_stream(config: WebRLConfig) -> TaskStream:
    """Return the order of training groups, at its beginning."""
    tasks = run_tasks.weighed_tasks(config)
    return TaskStream(
        [task for _, task in tasks],
        num_seeds=config.env.num_train_seeds,
        group_size=config.gconfig.n_samples,
        seed=config.seed,
        weights=[entry.weight for entry, _ in tasks],
    )


def worker_spec(
    config: WebRLConfig,
    servers: ServerSpec,
    tasks: tuple[Task, ...],
    *,
    num_slots: int,
    temperature: float,
    is_synchronous: bool,
) -> WorkerSpec:
    """Return what a rollout worker is built from.

    Args:
        servers: What the inference servers were started with.
        is_synchronous: Spawn and tear down sessions around each round.
    """
    env = config.env
    return WorkerSpec(
        policy_path=servers.model_path,
        network=servers.network,
        first_task=next((task for task in tasks if task.is_local), None),
        browser=_browser_config(config, num_slots),
        workflow=WorkflowConfig(
            temperature=temperature,
            top_p=config.gconfig.top_p,
            max_new_tokens=config.gconfig.max_new_tokens,
            agent=config.agent,
            jpeg_quality=env.jpeg_quality,
            media_type=MEDIA_TYPES[env.screenshot_format],
            action_mode=env.action_mode,
            context_length=config.inference.context_length,
            time_limit_s=env.episode_timeout_s / 2,
            page_latency_s=env.page_latency_s,
            page_latency_cv=env.page_latency_cv,
            most_on_a_site=config.sites.max_at_once,
            site_interval_s=config.sites.interval_s,
        ),
        judge=config.judge if _is_judged(config) else None,
        episode_timeout_s=env.episode_timeout_s,
        max_attempts=config.rollout.max_attempts,
        is_synchronous=is_synchronous,
    )


def _browser_config(config: WebRLConfig, num_slots: int) -> BrowserConfig:
    """Return how the browsers of a worker are run, and from where they reach the web."""
    env = config.env
    return BrowserConfig(
        num_slots=num_slots,
        headless=env.headless,
        remotes=env.browsers,
        is_guarded=env.browser_network == "guarded",
        user_agent=env.user_agent,
        locale=env.locale,
        upstream=None
        if env.proxy is None
        else UpstreamConfig(
            url=env.proxy,
            credentials_env=env.proxy_credentials_env,
            resolves_names=env.proxy_resolves_names,
        ),
        is_marked=env.action_mode == "set_of_marks",
        screenshot_format=env.screenshot_format,
        jpeg_quality=env.jpeg_quality,
        recycle_browser_every=env.recycle_after_episodes,
        max_browser_age_s=env.recycle_after_s,
        max_browser_pss_bytes=env.recycle_above_bytes,
        deadlines=Deadlines(
            navigate_s=env.navigation_timeout_s,
            input_s=env.action_timeout_s,
            evaluate_s=env.action_timeout_s,
            screenshot_s=env.action_timeout_s,
        ),
    )


def server_spec(
    config: WebRLConfig, policy_path: str, network: NetworkConfig = LOCAL, *, version: int = 0
) -> ServerSpec:
    """Return how an inference server is started.

    Args:
        version: Weight version that the run goes on from.
    """
    return ServerSpec(
        backend=config.inference_backend,
        model_path=policy_path,
        network=network,
        num_threads=config.inference.num_threads,
        start_timeout_s=config.scheduler.startup_timeout_s,
        base_port=config.inference.base_port,
        tp_size=config.tp_size,
        extra_args=(
            "--dtype",
            config.actor.dtype,
            *config.inference.arguments(config.inference_backend),
        ),
        env_vars=tuple(parse_variables(config.inference.env_vars).items()),
        seeds=(config.seed, version),
    )


def check_pictures(config: WebRLConfig, processor: PolicyProcessor) -> None:
    """Refuse pages and agents that the policy can not be shown.

    Raises:
        ConfigError: The screenshots of one prompt and an answer exceed the context, or the chat
            template can not be asked as `[agent]` says.
    """
    check_agent(config.agent, processor)
    tasks = (*run_tasks.train_tasks(config), *run_tasks.test_tasks(config))
    room = config.inference.context_length - config.gconfig.max_new_tokens
    for size in {(task.viewport.height, task.viewport.width) for task in tasks}:
        shown = size_within(*size, config.agent.max_pixels)
        needed = config.agent.images * processor.num_image_tokens(*shown)
        if needed >= room:
            message = (
                f"must hold agent.images = {config.agent.images} screenshots of "
                f"{shown[1]} x {shown[0]} ({needed} tokens) and gconfig.max_new_tokens = "
                f"{config.gconfig.max_new_tokens}, got {config.inference.context_length}. Raise it, "
                "or make the page smaller (env.viewport_width, agent.max_pixels)."
            )
            raise ConfigError([Problem(key="inference.context_length", message=message)])


def loss_config(config: WebRLConfig, masked_token_ids: tuple[int, ...]) -> LossConfig:
    """Return the loss of the update engine."""
    actor = config.actor
    is_coupled_to_sampler = not actor.use_decoupled_loss and not actor.recompute_logprob
    return LossConfig(
        objective=actor.loss,
        use_decoupled_loss=actor.use_decoupled_loss,
        proximal_method="behavior" if is_coupled_to_sampler else actor.prox_logp_method,
        clip_low=actor.eps_clip,
        clip_high=actor.eps_clip if actor.eps_clip_higher is None else actor.eps_clip_higher,
        dual_clip=actor.c_clip,
        importance=actor.importance,
        weight_floor=actor.behav_imp_weight_floor,
        weight_cap=actor.behav_imp_weight_cap,
        aggregation=actor.loss_aggregation,
        constant=actor.step_adv_const_length,
        entropy_coefficient=actor.entropy_coef,
        kl_coefficient=actor.kl_ctl,
        kl_estimator=actor.kl_estimator,
        temperature=config.gconfig.temperature,
        masked_token_ids=masked_token_ids,
    )


def rank_threads(config: WebRLConfig) -> int:
    """Return the CPU threads of one trainer rank."""
    return config.actor.num_threads or (GPU_RANK_THREADS if config.cluster.num_gpus else 1)


def rank_environment(config: WebRLConfig) -> dict[str, str]:
    """Return what the process of a trainer rank has in its environment from its first import on."""
    return {
        **parse_variables(config.actor.env_vars),
        "OMP_NUM_THREADS": str(rank_threads(config)),
        **RANK_ENVIRONMENT,
    }


def engine_spec(config: WebRLConfig, servers: ServerSpec, processor: PolicyProcessor) -> EngineSpec:
    """Return what a rank of the update engine is built from."""
    actor, optimizer = config.actor, config.actor.optimizer
    num_steps = config.total_steps * actor.ppo_n_minibatches * actor.ppo_n_epochs
    return EngineSpec(
        policy_path=servers.model_path,
        network=servers.network,
        num_threads=rank_threads(config),
        use_cuda=config.cluster.num_gpus > 0,
        actor=ActorConfig(
            optimizer=OptimizerConfig(
                lr=optimizer.lr,
                betas=(optimizer.beta1, optimizer.beta2),
                eps=optimizer.eps,
                weight_decay=optimizer.weight_decay,
                schedule=optimizer.schedule,
                num_warmup_steps=min(num_steps - 1, round(optimizer.warmup_fraction * num_steps)),
                num_total_steps=num_steps,
                min_lr_ratio=optimizer.min_lr_ratio,
                max_grad_norm=optimizer.max_grad_norm,
                is_state_offloaded=optimizer.offload,
            ),
            loss=loss_config(config, processor.masked_token_ids),
            token_budget=actor.max_tokens_per_mb,
            num_mini_batches=actor.ppo_n_minibatches,
            num_epochs=actor.ppo_n_epochs,
            compute_dtype=actor.dtype,
            publish_dtype=actor.dtype,
            row_layout=actor.row_layout,
            checkpointed_block_share=actor.checkpointed_block_share
            if actor.gradient_checkpointing
            else 0.0,
            is_compiled=actor.compile_blocks,
            frozen_modules=actor.frozen_modules,
            num_head_tokens=actor.num_head_tokens,
            publish_bucket_bytes=actor.publish_bucket_bytes,
            is_publish_overlapped=actor.overlap_publish,
            save_timeout_s=config.checkpoint.deadline_s,
            seed=config.seed,
        ),
    )


def pixelstore_config(config: WebRLConfig) -> PixelStoreConfig:
    """Return the budgets of the PixelStore's shards."""
    section = config.pixelstore
    return PixelStoreConfig(
        max_bytes=section.max_bytes // section.num_shards,
        disk_dir=None if section.disk_dir is None else os.path.abspath(section.disk_dir),
        max_disk_bytes=section.max_disk_bytes // section.num_shards,
    )


def publisher_config(
    config: WebRLConfig, servers: ServerSpec, folder: Path, *, host: str, run_id: str
) -> PublisherConfig:
    """Return the way and the deadlines of the weight publisher.

    Args:
        servers: Their checkpoint lends a snapshot its config and tokenizer.
        folder: Where snapshots go with `weight_update_mode = "disk"`; the newest one stays.
        host: Address of the trainer's rank 0.
        run_id: Names the process groups.
    """
    snapshots = None
    if config.weight_update_mode == "disk":
        snapshots = SnapshotWriter(folder, base=servers.model_path, keep=1)
    return PublisherConfig(
        snapshots=snapshots,
        backend=config.update_backend,
        host=host,
        group_prefix=f"awrl-weights-{run_id}",
    )
