"""Every section of the configuration, in the order of `webrl configs --keys`.

The text beneath a field is what the key's documentation says.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import Annotated, Literal
from urllib.parse import urlsplit

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
from webrl.loopback import is_loopback
from webrl.page_size import broken_page_size

LONGEST_EPISODE = 30
"""Most actions of a task that sets its own limit; a file's task with a higher one should be given
`max_steps`, so that the pixel store is sized for it."""
LARGEST_VIEWPORT = (1280, 720)
"""What a task may bring when the configuration leaves the page size to it."""
BYTES_PER_PIXEL = {"jpeg": 0.2, "png": 1.0}
"""Upper end of what busy pages take: 150 KB for a JPEG of 1280 x 720, five times that for a PNG."""
SCREENSHOT_FLOOR_BYTES = 2048
"""Headers and tables of the smallest encoded picture, with some room."""
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
NODE_LABEL = re.compile(r"[\w./-]+=[\w.-]+")
"""Ray's form of a label."""
ENVIRONMENT_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
"""Capitals only: a key that was pasted in place of the name by mistake is no such name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSection(Section):
    """One task, or one file of tasks, to train and evaluate on."""

    name: Annotated[Text, "List the names with: webrl tasks."]
    """A name that `webrl tasks` lists, such as `miniwob/click-test-2`; or a file of tasks:
    `tasks:PATH` for those of one's own, `webgym:PATH` for WebGym's format, which needs a judge."""
    split: Literal["both", "train", "test"] = "both"
    """What the tasks are for: training, the test rollout and `webrl eval`, or both."""
    max_steps: Annotated[Count, "An episode needs one action."] | None = None
    """Actions of one episode before it ends as a failure; each task's own limit when unset, which
    for `webgym:PATH` goes by difficulty: 10, 20, 30 in training, 30, 50, 70 in tests."""
    test_max_steps: Annotated[Count, "Leave it out for max_steps."] | None = None
    """The same for the test rollout; `max_steps`, else each task's own limit, when unset."""
    weight: Annotated[Positive, "Remove the task to never draw it."] = 1.0
    """How often the task is drawn, relative to the others."""

    @property
    def is_judged(self) -> bool:
        """Whether a judge decides about the episodes."""
        return self.name.startswith("webgym:")

    @property
    def most_steps(self) -> int:
        """Upper bound of a training episode's actions."""
        return self.max_steps or LONGEST_EPISODE


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerSection(Section):
    """Who places and watches the workers."""

    type: Literal["ray"] = "ray"
    """Ray is the one scheduler. It joins the cluster at `RAY_ADDRESS`, or starts a local one."""
    startup_timeout_s: Annotated[Positive, "Typical value: 300."] = 300.0
    """Deadline for all workers and servers to be ready, in seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSection(Section):
    """The machines, and whether generation has servers of its own."""

    n_inference_servers: Annotated[Natural, "0 is synchronous."] = 1
    """Servers that generate while training goes on; 0 is synchronous on shared devices."""
    n_nodes: Annotated[Count, "Count this machine."] = 1
    """Machines that the run counts on, each with `n_gpus_per_node` GPUs; more may join the cluster,
    for browsers."""
    n_gpus_per_node: Annotated[Natural, "Use 0 for CPUs only."] = 0
    """GPUs that the run takes of each machine at most; 0 runs everything on CPUs."""
    gpu_memory_bytes: Annotated[Count, "Leave it out for what is seen."] | None = None
    """Memory of one GPU, for the budget before a start; what is seen on this machine when unset."""

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole cluster."""
        return self.n_nodes * self.n_gpus_per_node


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
class EnvSection(Section):
    """Rollout workers and their browsers."""

    num_workers: Annotated[Count, "Someone must run the episodes."] = 1
    """Rollout worker processes, each with a browser of its own."""
    slots_per_worker: Annotated[Count, "Use 1 for one at a time."] = 16
    """Episodes that one worker can run at one moment."""
    cpus_per_slot: Annotated[Positive, "Typical value: 0.125."] | None = None
    """Logical CPUs that Ray sets aside for each slot of a worker; unset: a worker declares as much
    as every other process, one at most."""
    node_label: str | None = None
    """Ray label, written `name=value`, of the only machines that run browsers; any when unset."""
    viewport_width: Annotated[int, Meta(ge=16, le=8192), "Typical values: 1280 and 720."] | None = (
        None
    )
    """Width of page and screenshot in CSS pixels; each task's own when unset."""
    viewport_height: (
        Annotated[int, Meta(ge=16, le=8192), "Typical values: 1280 and 720."] | None
    ) = None
    """Height of page and screenshot in CSS pixels; each task's own when unset."""
    action_mode: Literal["coordinates", "set_of_marks"] = "coordinates"
    """How the policy says where: by a point of a grid, or by the number that the screenshot shows
    beside an element. Decides screenshots, prompt and grammar."""
    screenshot_format: Literal["png", "jpeg"] = "jpeg"
    """What the policy sees and the pixel store holds: `png` for small flat pages."""
    jpeg_quality: Annotated[int, Meta(ge=1, le=100), "Typical value: 80."] = 80
    """Quality of `jpeg` screenshots, 1 to 100."""
    reset: Literal["keep_page", "reload", "new_context"] | None = None
    """How an episode starts clean; each task's own way when unset."""
    history_window: Annotated[Count, "The policy needs a screenshot."] = 1
    """Screenshots in one prompt: the newest and the ones before it."""
    action_timeout_s: Annotated[Positive, "Typical value: 10."] = 10.0
    """Deadline of one browser action, in seconds."""
    episode_timeout_s: Annotated[Positive, "Typical value: 120."] = 120.0
    """Deadline of one episode, in seconds; past it the episode is a fault, not a failure. Its own
    actions may take half of it: past that it ends as a failure."""
    page_latency_s: Annotated[NonNegative, "Use 0 for none."] = 0.0
    """Mean of an artificial wait before each action, in seconds: a slow site on a fast machine."""
    page_latency_cv: Annotated[NonNegative, "Use 0 for a fixed wait."] = 1.0
    """Coefficient of variation of that wait, lognormal and fixed by task, seed and step."""
    num_train_seeds: Annotated[Count, "Typical: 100000."] = 100_000
    """Training seeds of each task; an epoch visits every task with every one of them."""
    recycle_after_episodes: Annotated[Count, "Typical: 2000."] = 2000
    """Episodes after which a browser process is replaced."""
    recycle_after_s: Annotated[Positive, "Typical value: 3600."] = 3600.0
    """Age in seconds at which a browser process is replaced."""
    recycle_above_bytes: Annotated[int, Meta(ge=1 << 28), "Typical: 4294967296."] | None = None
    """Memory of a browser with all its processes above which it is replaced and its largest page
    ended; unset: 2 GiB and 256 MiB for each slot."""

    def contradictions(self) -> list[Problem]:
        """A label is one; a viewport has two sides, and a shape that a policy can be shown."""
        label = self.node_label
        if label is not None and not NODE_LABEL.fullmatch(label):
            remedy = "Give what `ray start --labels` was given, such as browsers=true."
            return [breach("node_label", "written name=value", label, remedy)]
        width, height = self.viewport_width, self.viewport_height
        if width is not None and height is not None:
            rule = broken_page_size(width, height)
            if rule is None:
                return []
            return [breach("viewport_width", rule, f"{width} x {height}", "Use e.g. 1280 x 720.")]
        if width is height:
            return []
        rule = "set together with viewport_height, or neither"
        return [breach("viewport_width", rule, self.viewport_width, "Give both.")]

    @property
    def num_slots(self) -> int:
        """Episodes that all workers together can run at one moment."""
        return self.num_workers * self.slots_per_worker

    @property
    def most_screenshot_bytes(self) -> int:
        """Upper estimate of one stored screenshot."""
        width, height = LARGEST_VIEWPORT
        pixels = (self.viewport_width or width) * (self.viewport_height or height)
        return int(pixels * BYTES_PER_PIXEL[self.screenshot_format]) + SCREENSHOT_FLOOR_BYTES


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeSection(Section):
    """A vision-language model behind an OpenAI-compatible server, for `webgym:PATH` tasks."""

    url: str | None = None
    """Base address of the server, such as `https://api.example/v1`; no judge when unset."""
    model: str | None = None
    """Name of the model there; must be set with `judge.url`."""
    api_key_env: str | None = None
    """Name of the environment variable with the key, on every machine with rollout workers; no key
    is sent when unset."""
    deadline_s: Annotated[Positive, "Typical value: 120."] = 120.0
    """Limit for one verdict, retries included, in seconds; waiting for one of the `max_concurrent`
    places does not count. Past it the episode is a fault."""
    request_timeout_s: Annotated[Positive, "Typical value: 60."] = 60.0
    """Limit for one request, in seconds."""
    max_retries: Annotated[Natural, "Use 0 for none."] = 3
    """Requests after one that failed or was not answered in form."""
    max_concurrent: Annotated[Count, "Typical value: 8."] = 8
    """Requests of one rollout worker at one moment."""
    max_screenshots: Annotated[Count, "Typical value: 16."] = 16
    """Screenshots of one request; of more the model first picks the relevant ones."""
    max_answer_tokens: Annotated[Count, "Typical value: 1024."] | None = 1024
    """Most tokens of one answer, the reasoning in it included; no limit is sent when `none`."""
    token_limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the server calls that limit: reasoning models of some providers want the longer name."""
    temperature: Annotated[float, Meta(ge=0, le=2), "Use 0, or none to send none."] | None = 0.0
    """Sampling temperature; none is sent when `none`, as some reasoning models refuse it."""

    def contradictions(self) -> list[Problem]:
        """An address that can be asked, a model there, and no secret in either."""
        problems: list[Problem] = []
        name = self.api_key_env
        if name is not None and not ENVIRONMENT_VARIABLE.fullmatch(name):
            # What stands here may be the key itself: it is not repeated.
            rule, shown = "the name of an environment variable", f"{len(name)} other characters"
            problems.append(breach("api_key_env", rule, shown, "Use e.g. JUDGE_API_KEY."))
        if self.url is None:
            return problems
        if not (self.model and self.model.strip()):
            rule = "set together with judge.url"
            remedy = "Name a model of the server that reads images."
            problems.append(breach("model", rule, self.model, remedy))
        broken = _broken_address(self.url, has_key=name is not None)
        if broken is not None:
            problems.append(breach("url", *broken, "Use e.g. https://api.example/v1."))
        return problems


def _broken_address(url: str, *, has_key: bool) -> tuple[str, str] | None:
    """Return the rule that an address breaks, and how to show it without a secret."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "a well-formed address", "something else"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "an address with http:// or https://", "something else"
    if parts.username is not None or parts.password is not None or parts.query:
        return "an address without user, password or query (use api_key_env)", parts.hostname
    if has_key and parts.scheme == "http" and not is_loopback(parts.hostname):
        return "https:// where a key is sent to another machine", f"http://{parts.hostname}"
    return None


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
class RolloutSection(Section):
    """The everlasting pool and its two bounds. All counts are episodes."""

    max_head_offpolicyness: Annotated[Natural, "Use 0 for synchronous RL."] = 2
    """eta: how many published updates a trainable token may lag behind; 0 is synchronous RL."""
    max_concurrent_rollouts: Annotated[Count, "Allow one episode at least."] = 128
    """Episodes that may run at one moment."""
    consumer_batch_size: Annotated[Count, "An update needs data."] = 128
    """B: episodes that one update consumes."""
    on_overrun: Literal["drop", "wait"] = "drop"
    """What happens to episodes that would outlive the bound: dropped, or awaited before closing."""
    max_attempts: Annotated[Count, "Use 1 for no retry."] = 3
    """Starts of one episode, the first one included, before its fault is final."""
    max_useless_groups: Annotated[Count, "Use a larger number to wait longer."] = 1000
    """Groups in a row of equal rewards, which carry no gradient, after which the run stops: then
    nobody solves the tasks, or everybody does."""
    max_fault_share: Annotated[float, Meta(gt=0, le=1), "Use 1 to never stop on faults."] = 0.5
    """Share of recent episodes that may end in faults before the run stops itself."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class PixelStoreSection(Section):
    """Where screenshots wait between browser and trainer."""

    num_shards: Annotated[Count, "Use 1 on one machine."] = 1
    """Actors that hold the screenshots, in turn on the nodes with rollout workers, which put to one
    of their own node."""
    max_bytes: Annotated[int, Meta(ge=1 << 20), "Give a mebibyte at least."] = 1 << 30
    """Memory budget over all shards, in bytes; its fullness holds back new episodes."""
    disk_dir: str | None = None
    """Folder for what does not fit in memory; no disk tier when unset."""
    max_disk_bytes: Annotated[Count, "Leave out disk_dir for none."] = 1 << 34
    """Budget of the disk tier, in bytes; used only with `disk_dir`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TestRolloutSection(Section):
    """The background evaluation on servers of its own."""

    __test__ = False

    enabled: bool = False
    """Whether the test rollout runs."""
    n_gpus: Annotated[Natural, "Use test_rollout.enabled=false for none."] = 1
    """GPUs of its own servers, each of which takes as many as a rollout server, or CPU processes where
    the cluster has no GPU; 0 starts one server on the devices of the first rollout server."""
    num_seeds: Annotated[Count, "An evaluation needs a seed."] = 128
    """Held-out seeds of one evaluation, spread over the tasks; where tasks outnumber them, over a
    fixed random sample with each difficulty's share."""
    num_final_seeds: Annotated[Natural, "Use 0 to skip it."] = 512
    """Held-out seeds of the one evaluation after the last update; 0 skips it."""
    interval_s: Annotated[NonNegative, "Use 0 for back to back."] = 120.0
    """Least time from the start of one evaluation to the start of the next, in seconds."""
    temperature: Annotated[NonNegative, "Use 0 for greedy."] = 0.0
    """Sampling temperature; 0 is greedy."""
    max_concurrent: Annotated[Count, "Allow one episode at least."] = 8
    """Episodes of the evaluation that run at one moment."""
    deadline_s: Annotated[Positive, "Typical value: 3600."] = 3600.0
    """Limit of one evaluation, in seconds; episodes that have not ended then are late."""
    late_episodes: Literal["failure", "exclude"] = "failure"
    """What late episodes count as: failures, since the slow ones are the hard ones, or nothing.
    Both shares are printed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointSection(Section):
    """When the run is saved."""

    save_every: Annotated[Count, "Use total_steps for only the last."] = 20
    """Published updates between two checkpoints; the first and the last one are always saved, the
    last also after Ctrl-C."""
    save_every_s: Annotated[Positive, "Leave it out for none."] | None = 600.0
    """Longest time between two checkpoints while updates are made, in seconds; none when unset."""
    deadline_s: Annotated[Positive, "Typical value: 3600."] = 3600.0
    """Limit of reading or writing one checkpoint, in seconds: its bytes over what the disk takes."""
    keep: Annotated[Count, "The newest one is always kept."] = 3
    """Newest complete checkpoints that stay on disk."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggingSection(Section):
    """Where figures go. `metrics.jsonl` is always written."""

    tracker: Literal["tensorboard", "wandb", "trackio", "none"] = "tensorboard"
    """Extra sink of the metrics; `wandb` and `trackio` are extras of the package."""
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severity in `run.log`."""
    sample_every: Annotated[Count, "Use 1 to keep every group."] = 50
    """One group in so many is kept on disk with its screenshots."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoverSection(Section):
    """How often what dies is started again."""

    max_restarts: Annotated[Natural, "Use 0 to stop at the first death."] = 3
    """Restarts of one worker, server or shard in a run before the run stops."""
