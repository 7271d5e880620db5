"""Contradictions between sections, and warnings for knobs that can never bind."""

from __future__ import annotations

import itertools

import pytest
from webrl.config import (
    PROXIMAL_CHOICES,
    check_dataset_size,
    config_warnings,
    describe_plan,
    load_config,
)
from webrl.errors import ConfigError

SHARED = "allocation_mode=embedded[rollout]:d1|fsdp[actor]:d1"
CHOICES = list(
    itertools.product((True, False), (True, False), ("recompute", "loglinear", "metrics"))
)


def problem_of(source: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(source, overrides)
    return str(caught.value)


@pytest.mark.requirement("loss-toggles")
@pytest.mark.parametrize(("decoupled", "recompute", "method"), CHOICES)
def test_only_the_listed_proximal_combinations_are_valid(
    decoupled: bool, recompute: bool, method: str
) -> None:
    overrides = [
        f"actor.use_decoupled_loss={str(decoupled).lower()}",
        f"actor.recompute_logprob={str(recompute).lower()}",
        f"actor.prox_logp_method={method}",
    ]
    valid = {
        (row.use_decoupled_loss, row.recompute_logprob, row.prox_logp_method)
        for row in PROXIMAL_CHOICES
    }
    if (decoupled, recompute, method) in valid:
        load_config("laptop", overrides)
    else:
        text = problem_of("laptop", *overrides)
        assert "actor.use_decoupled_loss" in text
        assert "Valid ones: true, true, 'recompute'" in text


def test_there_are_exactly_five_valid_proximal_combinations() -> None:
    assert len(PROXIMAL_CHOICES) == 5


@pytest.mark.parametrize("setting", ["behav_imp_weight_cap=5", "behav_imp_weight_floor=0.5"])
def test_bounds_of_a_weight_without_a_decoupled_loss_are_refused(setting: str) -> None:
    text = problem_of(
        "laptop",
        "actor.use_decoupled_loss=false",
        "actor.recompute_logprob=false",
        f"actor.{setting}",
    )
    key = setting.partition("=")[0]
    assert f"actor.{key} must be unset with use_decoupled_loss = false" in text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["c_clip=1.1"], "actor.c_clip must be above 1 + the upper clip distance = 1.2, got 1.1"),
        (["c_clip=1.5", "eps_clip_higher=0.6"], "the upper clip distance = 1.6, got 1.5"),
        (["c_clip=3", "loss=cispo"], "actor.c_clip must be unset with loss = 'cispo'"),
        (
            ["behav_imp_weight_cap=2", "behav_imp_weight_floor=2"],
            "actor.behav_imp_weight_floor must be below behav_imp_weight_cap = 2",
        ),
        (
            ["importance=sequence_mask"],
            "actor.behav_imp_weight_cap must be set with importance = 'sequence_mask'",
        ),
        (["loss=grpo"], "actor.loss must be one of 'ppo', 'gspo', 'cispo'"),
    ],
)
def test_options_of_the_loss_that_do_not_fit_are_refused(settings: list[str], message: str) -> None:
    assert message in problem_of("laptop", *(f"actor.{setting}" for setting in settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["actor.dtype=bfloat16"], "actor.dtype must be 'float32' with embedded servers"),
        (
            ["inference.backend=sglang", "inference.sglang_args=--tp-size 2"],
            "got '--tp-size'. Use allocation_mode, such as sglang[rollout]:d24t2",
        ),
        (["inference.sglang_args=--random-seed=1"], "got '--random-seed'. Use seed."),
        (
            ["env.viewport_width=16", "env.viewport_height=8192"],
            "env.viewport_width must be at most 200 times as long as wide",
        ),
        (["inference.sglang_args=--log-level 'very"], "inference.sglang_args must be words"),
    ],
)
def test_settings_that_no_run_could_live_with_are_refused(
    settings: list[str], message: str
) -> None:
    assert message in problem_of("laptop", *settings)


@pytest.mark.requirement("async-switch")
def test_zero_servers_need_shared_devices() -> None:
    text = problem_of("laptop", "cluster.n_inference_servers=0")
    assert "must be > 0 when rollout and actor have devices of their own" in text
    config = load_config("laptop", ["cluster.n_inference_servers=0", SHARED]).config
    assert config.is_synchronous
    assert config.off_policyness_bound == 0
    assert config.capacity == config.rollout.consumer_batch_size


@pytest.mark.requirement("async-switch")
@pytest.mark.parametrize("operator", ["+", "|"])
def test_a_positive_server_count_must_equal_the_rollout_d(operator: str) -> None:
    allocation = f"allocation_mode=embedded[rollout]:d2{operator}fsdp[actor]:d2"
    text = problem_of("laptop", allocation)
    assert "must equal the rollout's d in allocation_mode (2), got 1" in text
    load_config("laptop", [allocation, "cluster.n_inference_servers=2"])


def test_sharing_devices_asynchronously_warns_and_uses_gloo() -> None:
    config = load_config("one_gpu").config
    assert config.update_backend == "gloo"
    assert any("over gloo" in warning for warning in config_warnings(config))
    assert load_config("webgym_48_16").config.update_backend == "nccl"
    assert load_config("laptop").config.update_backend == "gloo"


@pytest.mark.requirement("one-server-per-device")
@pytest.mark.parametrize(
    ("allocation", "words"),
    [
        ("embedded[serve]:d1+fsdp[actor]:d1", "must have a role named 'rollout'"),
        ("embedded[rollout]:d1+fsdp[train]:d1", "must have a role named 'actor'"),
        ("fsdp[rollout]:d1+embedded[actor]:d1", "give 'rollout' an inference backend"),
        ("embedded[rollout]:d1+fsdp[actor]:d1+fsdp[critic]:d1", "the roles 'rollout' and 'actor'"),
        ("embedded[rollout]:d1p2+fsdp[actor]:d1", "data and tensor parallelism only, got d1p2"),
        ("embedded[rollout]:d1t2|fsdp[actor]:d2", "data parallelism only where it shares devices"),
        ("embedded[rollout]:d1+fsdp[actor]:d1t2", "Write fsdp[actor]:d2"),
        ("embedded[rollout]:d1+fsdp[actor]:d1c2", "Write fsdp[actor]:d2"),
    ],
)
def test_roles_that_this_system_can_not_run_are_refused(allocation: str, words: str) -> None:
    assert words in problem_of("laptop", f"allocation_mode={allocation}")


def test_tensor_parallel_servers_count_their_devices() -> None:
    layout = (
        "allocation_mode=sglang[rollout]:d24t2+fsdp[actor]:d16",
        "cluster.n_inference_servers=24",
    )
    test = ("cluster.n_nodes=9", "test_rollout.enabled=true")
    config = load_config("webgym_48_16", [*layout, *test]).config
    assert (config.tp_size, config.allocation.num_devices, config.num_test_servers) == (2, 64, 4)
    text = problem_of("webgym_48_16", *layout, *test, "test_rollout.n_gpus=7")
    assert "test_rollout.n_gpus must be divisible by the rollout's t in allocation_mode (2)" in text
    text = problem_of("webgym_48_16", *layout, *test, "test_rollout.n_gpus=0")
    assert "test_rollout.n_gpus must be >= the rollout's t in allocation_mode (2), got 0" in text
    plan = describe_plan(config)
    assert "48 GPUs           devices 0-47, 24 servers of 2\n" in plan
    assert "8 GPUs           devices 64-71, 4 servers of 2\n" in plan
    layout = (
        "allocation_mode=sglang[rollout]:d3t16+fsdp[actor]:d16",
        "cluster.n_inference_servers=3",
    )
    assert "must give a server GPUs of one machine, got t16" in problem_of("webgym_48_16", *layout)


@pytest.mark.requirement("roles-on-own-devices", "test-rollout-sizing")
def test_the_total_of_all_roles_must_fit_the_cluster() -> None:
    text = problem_of("webgym_48_16", "cluster.n_nodes=1")
    assert "must fit the cluster's 8 GPUs (1 nodes x 8), got 64" in text
    text = problem_of("webgym_48_16", "test_rollout.enabled=true")
    assert "got 72 (64 by allocation_mode + 8 by test_rollout.n_gpus)" in text
    load_config("webgym_48_16", ["test_rollout.enabled=true", "cluster.n_nodes=9"])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rollout.consumer_batch_size=100"], "divisible by gconfig.n_samples (8), got 100"),
        (
            ["allocation_mode=embedded:d1+fsdp:d3"],
            "divisible by the actor's d in allocation_mode (3), got 128. Use e.g. 129.",
        ),
        (["actor.ppo_n_minibatches=300"], "must be <= rollout.consumer_batch_size (128), got 300"),
        (["gconfig.max_new_tokens=512"], "must be < inference.context_length (512), got 512"),
    ],
)
def test_a_batch_that_does_not_split_is_refused(overrides: list[str], words: str) -> None:
    assert words in problem_of("laptop", *overrides)


def test_a_pixel_store_too_small_for_the_bound_is_refused_unless_it_has_a_disk_tier() -> None:
    text = problem_of("laptop", "pixelstore.max_bytes=1048576")
    assert "must hold (eta + 1) * B = 384 episodes of up to 2 screenshots" in text
    load_config("laptop", ["pixelstore.max_bytes=1048576", "pixelstore.disk_dir=/tmp/pixels"])


def test_a_task_file_smaller_than_a_batch_is_refused() -> None:
    config = load_config("webgym_48_16").config
    assert config.groups_per_batch == 16
    check_dataset_size(config, 16)
    with pytest.raises(ConfigError, match=r"at least 16 different tasks .*, got 15"):
        check_dataset_size(config, 15)


def test_a_concurrency_above_the_staleness_bound_warns() -> None:
    warnings = config_warnings(load_config("webgym_48_16").config)
    assert warnings[0] == (
        "rollout.max_concurrent_rollouts = 1280 can never bind: staleness admits at most "
        "(eta + 1) * B = 384 episodes."
    )


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rollout.max_concurrent_rollouts=32"], "the workers have 16 slots"),
        (["env.slots_per_worker=64"], "64 slots in all can never be full, at most 16"),
        ([SHARED, "cluster.n_inference_servers=0"], "has no effect: the run is synchronous"),
        (["policy.path=/p", "policy.init.seed=3"], "policy.init has no effect"),
        (["env.jpeg_quality=50"], "env.jpeg_quality has no effect"),
        (["env.action_mode=set_of_marks"], "the tiny policy was warmed up on positions"),
        (["gconfig.top_p=0.9"], "the behavior weights are biased"),
        (["checkpoint.save_every=1000"], "never comes due within total_steps"),
    ],
)
def test_a_knob_without_effect_warns(overrides: list[str], words: str) -> None:
    assert any(words in text for text in config_warnings(load_config("laptop", overrides).config))


def test_the_laptop_config_warns_of_nothing() -> None:
    assert config_warnings(load_config("laptop").config) == []


def test_the_plan_shows_roles_capacity_and_modes() -> None:
    plan = describe_plan(load_config("webgym_48_16").config)
    assert "rollout       sglang      48 GPUs           devices 0-47" in plan
    assert "actor         fsdp        16 GPUs           devices 48-63" in plan
    assert "64 GPUs of 64 in the cluster" in plan
    assert "(eta + 1) * B = (2 + 1) * 128 = 384 episodes in flight at most" in plan
    assert "B = 128 episodes = 16 groups x 8" in plan
    assert "xccl, broadcast over nccl" in plan


def test_a_page_that_hangs_is_found_out_before_its_episode_is_out_of_time() -> None:
    text = problem_of("laptop", "env.action_timeout_s=30")
    assert "env.action_timeout_s must be < half of env.episode_timeout_s (60), got 30" in text
