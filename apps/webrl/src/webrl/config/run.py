"""The whole configuration of a run, with the checks that involve more than one section."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from webrl.allocation import Allocation, Role, parse_allocation
from webrl.config.agent_section import AgentSection
from webrl.config.model_sections import (
    ActorSection,
    GenerationSection,
    InferenceSection,
    PolicySection,
)
from webrl.config.published import proximal_problems, server_problems
from webrl.config.rules import Count, Natural, Positive, Section, Text, breach
from webrl.config.sections import (
    CheckpointSection,
    ClusterSection,
    LoggingSection,
    PixelStoreSection,
    RecoverSection,
    RolloutSection,
    SchedulerSection,
    TestRolloutSection,
)
from webrl.config.web_sections import (
    LONGEST_EPISODE,
    EnvSection,
    JudgeSection,
    SitesSection,
    StepLimitsSection,
    TaskSection,
)
from webrl.errors import ConfigError, Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class WebRLConfig(Section):
    """Everything that decides what `webrl train` does. Published keys are spelled as published."""

    allocation_mode: str
    """Which role runs where: `sglang[rollout]:d48+fsdp[actor]:d16`."""
    tasks: tuple[TaskSection, ...]
    """What to train and evaluate on; at least one."""
    run_dir: Annotated[Text, "Give a folder, such as 'runs/first'."] = "runs/{config}-{time}"
    """Folder of this run; `{config}` and `{time}` are filled in when the run starts."""
    seed: Annotated[Natural, "Any number from 0."] = 0
    """Seed of everything random."""
    total_steps: Annotated[Count, "A run needs one update."] = 100
    """Published updates after which the run ends."""
    time_limit_s: Annotated[Positive, "Leave it out for none."] | None = None
    """Training time after which the run ends, in seconds; none when unset."""
    weight_update_mode: Literal["xccl", "disk"] = "xccl"
    """How new weights reach the servers: a broadcast, or a checkpoint on disk."""
    scheduler: SchedulerSection = field(default_factory=SchedulerSection)
    """Who places and watches the workers."""
    cluster: ClusterSection = field(default_factory=ClusterSection)
    """The machines."""
    policy: PolicySection = field(default_factory=PolicySection)
    """Where the policy comes from."""
    agent: AgentSection = field(default_factory=AgentSection)
    """What the policy is told, and how its replies are read."""
    env: EnvSection = field(default_factory=EnvSection)
    """Rollout workers and their browsers."""
    sites: SitesSection = field(default_factory=SitesSection)
    """Sites that shut the agent out, and those to stay away from."""
    step_limits: StepLimitsSection = field(default_factory=StepLimitsSection)
    """Actions of one episode by a WebGym task's difficulty."""
    judge: JudgeSection = field(default_factory=JudgeSection)
    """Who judges the episodes of tasks with a rubric."""
    gconfig: GenerationSection = field(default_factory=GenerationSection)
    """How actions are sampled."""
    rollout: RolloutSection = field(default_factory=RolloutSection)
    """The everlasting pool and its bounds."""
    actor: ActorSection = field(default_factory=ActorSection)
    """The update engine."""
    inference: InferenceSection = field(default_factory=InferenceSection)
    """The inference servers."""
    pixelstore: PixelStoreSection = field(default_factory=PixelStoreSection)
    """Where screenshots wait."""
    test_rollout: TestRolloutSection = field(default_factory=TestRolloutSection)
    """The background evaluation."""
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    """When the run is saved."""
    logging: LoggingSection = field(default_factory=LoggingSection)
    """Where figures go."""
    recover: RecoverSection = field(default_factory=RecoverSection)
    """How often what dies is started again."""

    def contradictions(self) -> list[Problem]:
        """Return what sections say against each other."""
        problems = self._layout_problems()
        problems += [problem.under("actor") for problem in proximal_problems(self.actor)]
        return problems + _task_problems(self) + _room_problems(self)

    def _layout_problems(self) -> list[Problem]:
        """Return what is wrong with the roles, and what does not fit them."""
        try:
            allocation = self.allocation
        except ConfigError as error:
            return list(error.problems)
        problems = _role_problems(allocation)
        if problems:
            return problems
        rollout, actor = allocation.role("rollout"), allocation.role("actor")
        is_shared = allocation.shares_devices("rollout", "actor")
        return [
            *server_problems(self.cluster.n_inference_servers, rollout.dims.d, is_shared=is_shared),
            *_device_problems(self, allocation),
            *_dtype_problems(self),
            *_batch_problems(self, actor.dims.d),
        ]

    @property
    def allocation(self) -> Allocation:
        """What `allocation_mode` says, parsed."""
        return parse_allocation(self.allocation_mode)

    @property
    def is_synchronous(self) -> bool:
        """Whether generation and training take turns."""
        return self.cluster.n_inference_servers == 0

    @property
    def off_policyness_bound(self) -> int:
        """Eta in force: `rollout.max_head_offpolicyness`, or 0 in a synchronous run."""
        return 0 if self.is_synchronous else self.rollout.max_head_offpolicyness

    @property
    def capacity(self) -> int:
        """Most episodes that may be running or waiting for their update: `(eta + 1) * B`."""
        return (self.off_policyness_bound + 1) * self.rollout.consumer_batch_size

    @property
    def most_steps(self) -> int:
        """Upper bound of a training episode's actions."""
        limits = self.step_limits
        own = max(LONGEST_EPISODE, limits.easy, limits.medium, limits.hard)
        return max(task.max_steps or own for task in self.tasks)

    @property
    def groups_per_batch(self) -> int:
        """Groups of siblings in one batch."""
        return self.rollout.consumer_batch_size // self.gconfig.n_samples

    @property
    def num_test_servers(self) -> int:
        """Inference servers of the test rollout."""
        if not self.test_rollout.enabled:
            return 0
        return max(1, self.test_rollout.n_gpus // self.tp_size)

    @property
    def tp_size(self) -> int:
        """Tensor-parallel size of an inference server: its devices."""
        return self.allocation.role("rollout").dims.t

    @property
    def inference_backend(self) -> str:
        """What the inference servers run: `embedded` or `sglang`."""
        return self.inference.backend or self.allocation.role("rollout").backend

    @property
    def update_backend(self) -> Literal["nccl", "gloo"]:
        """What carries the weight broadcast: gloo on CPUs and where roles share a GPU."""
        has_own_gpus = self.cluster.num_gpus > 0 and not self.allocation.shares_devices(
            "rollout", "actor"
        )
        return "nccl" if has_own_gpus else "gloo"


def _role_problems(allocation: Allocation) -> list[Problem]:
    """`rollout` generates, `actor` trains, and there are no others.

    Servers are data and tensor parallel, ranks data parallel only; on shared devices both are the latter.
    """
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
            continue
        dims = role.dims
        is_server = role.name == "rollout" and not allocation.is_shared(role)
        if dims.num_devices != dims.d * (dims.t if is_server else 1):
            what = "data and tensor parallelism" if is_server else "data parallelism"
            shared = " where it shares devices" if role.name == "rollout" and not is_server else ""
            note(f"give {role.name!r} {what} only{shared}", _dims_text(role), _dims_fix(role))
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
    test = config.test_rollout.n_gpus if config.test_rollout.enabled else 0
    if test % config.tp_size:
        rule = f"divisible by the rollout's t in allocation_mode ({config.tp_size})"
        remedy = "Each of its servers takes as many GPUs as a rollout server."
        return [breach("test_rollout.n_gpus", rule, test, remedy)]
    if available == 0:
        return []
    if config.tp_size > config.cluster.n_gpus_per_node:
        message = (
            f"must give a server GPUs of one machine, got t{config.tp_size} with "
            f"cluster.n_gpus_per_node = {config.cluster.n_gpus_per_node}. Lower t."
        )
        return [Problem(key="allocation_mode", message=message)]
    if config.tp_size > 1 and config.num_test_servers and not test:
        # Ray hands out parts of one device only, so no two servers can share several.
        rule = f">= the rollout's t in allocation_mode ({config.tp_size})"
        remedy = "A tensor parallel server shares its GPUs with no other."
        return [breach("test_rollout.n_gpus", rule, test, remedy)]
    needed = allocation.num_devices + test
    if needed <= available:
        return []
    message = (
        f"must fit the cluster's {available} GPUs ({config.cluster.n_nodes} nodes x "
        f"{config.cluster.n_gpus_per_node}), got {needed} ({allocation.num_devices} by "
        f"allocation_mode + {test} by test_rollout.n_gpus). Shrink a role or raise cluster.n_nodes."
    )
    return [Problem(key="allocation_mode", message=message)]


def _dtype_problems(config: WebRLConfig) -> list[Problem]:
    """Embedded servers hold and take weights in float32."""
    if config.inference_backend != "embedded" or config.actor.dtype == "float32":
        return []
    rule = "'float32' with embedded servers"
    remedy = "Set it, or inference.backend to 'sglang'."
    return [breach("actor.dtype", rule, config.actor.dtype, remedy)]


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

    # Of a file one entry may take one part and another one the rest.
    single = [task.name for task in config.tasks if not task.is_file]
    twice = sorted({name for name in single if single.count(name) > 1})
    if twice:
        note("tasks", f"must name each task once, got {twice[0]!r} twice. Use `weight` instead.")
    if all(task.split == "test" for task in config.tasks):
        note("tasks", "must hold one to train on, got only split = 'test'. Add a task.")
    if config.test_rollout.enabled and all(task.split == "train" for task in config.tasks):
        note("tasks", "must hold one for the test rollout, got only split = 'train'. Add a task.")
    return problems + _judge_problems(config) + _time_problems(config)


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


def _time_problems(config: WebRLConfig) -> list[Problem]:
    """A page that the policy makes hang is found out before its episode is out of time."""
    env = config.env
    limits = {
        "action_timeout_s": env.action_timeout_s,
        "navigation_timeout_s": env.navigation_timeout_s,
        "settle_timeout_s": env.settle_timeout_s or 0.0,
    }
    return [
        Problem(
            key=f"env.{name}",
            message=f"must be < half of env.episode_timeout_s ({env.episode_timeout_s:g}), got "
            f"{limit_s:g}: else a page that the policy makes hang is a fault instead of its "
            "failure. Lower it.",
        )
        for name, limit_s in limits.items()
        if limit_s >= env.episode_timeout_s / 2
    ]


def _room_problems(config: WebRLConfig) -> list[Problem]:
    """The pixel store holds all episodes that may be in flight, or has a disk tier."""
    if not config.tasks:
        return []
    store = config.pixelstore
    room = store.max_bytes if store.disk_dir is None else store.max_disk_bytes
    # A start page and one screenshot after each action.
    pictures = config.most_steps + 1
    needed = config.capacity * pictures * config.env.most_screenshot_bytes
    if needed <= room:
        return []
    message = (
        f"must hold (eta + 1) * B = {config.capacity} episodes of up to {pictures} screenshots, "
        f"about {needed} bytes, got {room} bytes. Raise it, set pixelstore.disk_dir, or lower "
        "rollout.consumer_batch_size."
    )
    return [Problem(key="pixelstore.max_bytes", message=message)]


def check_dataset_size(config: WebRLConfig, num_tasks: int) -> None:
    """Refuse fewer different tasks than one batch has groups.

    Raises:
        ConfigError: There are too few.
    """
    if num_tasks < config.groups_per_batch:
        message = (
            f"must hold at least {config.groups_per_batch} different tasks "
            f"(rollout.consumer_batch_size / gconfig.n_samples), got {num_tasks}. Add tasks or "
            "lower rollout.consumer_batch_size."
        )
        raise ConfigError([Problem(key="tasks", message=message)])
