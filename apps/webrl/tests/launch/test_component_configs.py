"""From the configuration to roles and server arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from webrl.cluster.placement import check_feasible
from webrl.cluster.ray_cluster import NodeResources
from webrl.config import load_config
from webrl.errors import ConfigError, TaskError
from webrl.launch import component_configs
from webrl.page_size import broken_page_size
from webrl.policy import InitPolicyConfig, PolicyProcessor, WarmupConfig, init_policy
from webrl.tasks import Task, Viewport

ONE_GPU = NodeResources(node_id="a", address="a", num_cpus=16.0, num_gpus=1.0)


def test_server_trainer_and_test_server_share_one_gpu_in_equal_parts() -> None:
    changes = ["policy.path=null", "test_rollout.enabled=true", "test_rollout.n_gpus=0"]
    config = load_config("one_gpu", changes).config
    roles = {role.name: role for role in component_configs.role_specs(config, 16.0)}
    shares = [
        roles[name]
        for name in (
            component_configs.ROLLOUT,
            component_configs.ACTOR,
            component_configs.TEST_ROLLOUT,
        )
    ]
    assert {role.gpus_per_worker for role in shares} == {0.3333}
    assert [role.colocate_with for role in shares] == [
        None,
        component_configs.ROLLOUT,
        component_configs.ROLLOUT,
    ]
    check_feasible(list(roles.values()), [ONE_GPU])


def test_without_a_test_rollout_each_of_two_has_half() -> None:
    roles = component_configs.role_specs(load_config("one_gpu", ["policy.path=null"]).config, 16.0)
    assert [role.gpus_per_worker for role in roles[:2]] == [0.5, 0.5]


def test_slots_declare_cpus_and_leave_the_rest_to_the_others() -> None:
    changes = ["env.cpus_per_slot=0.25", "env.node_label=browsers=true"]
    config = load_config("webgym_48_16", changes).config
    roles = {role.name: role for role in component_configs.role_specs(config, 352.0)}
    worker, server = roles[component_configs.WORKER], roles[component_configs.ROLLOUT]
    assert (worker.cpus_per_worker, server.cpus_per_worker) == (8.0, 0.5)
    assert (worker.node_label, server.node_label) == ("browsers=true", "")
    with pytest.raises(ConfigError, match=r"env\.node_label must be written name=value"):
        load_config("webgym_48_16", ["env.node_label=browsers"])


def test_a_tensor_parallel_server_takes_its_devices_and_tells_its_program() -> None:
    layout = ["allocation_mode=sglang[rollout]:d24t2+fsdp[actor]:d16"]
    config = load_config("webgym_48_16", [*layout, "cluster.n_inference_servers=24"]).config
    roles = {role.name: role for role in component_configs.role_specs(config, 768.0)}
    assert roles[component_configs.ROLLOUT].gpus_per_worker == 2.0
    assert roles[component_configs.ACTOR].gpus_per_worker == 1.0
    spec = component_configs.server_spec(config, "policy")
    assert spec.tp_size == 2


def test_ranks_and_servers_have_variables_of_their_own_beside_those_of_the_run() -> None:
    changes = ["actor.env_vars=NCCL_DEBUG=INFO, A=b=c", 'inference.env_vars=["HF_HUB_OFFLINE=1"]']
    config = load_config("one_node_8gpu", changes).config
    environment = component_configs.rank_environment(config)
    assert environment == {
        "NCCL_DEBUG": "INFO",
        "A": "b=c",
        "OMP_NUM_THREADS": "4",
        "NCCL_CUMEM_ENABLE": "0",
    }
    servers = component_configs.server_spec(config, "policy").environment
    assert (servers["HF_HUB_OFFLINE"], servers["OMP_NUM_THREADS"]) == ("1", "1")
    assert component_configs.rank_threads(load_config("laptop").config) == 1
    assert (
        component_configs.rank_threads(load_config("laptop", ["actor.num_threads=3"]).config) == 3
    )


def test_an_evaluation_by_itself_has_the_devices_and_the_browser_nodes_of_a_run() -> None:
    layout = ["allocation_mode=sglang[rollout]:d24t2+fsdp[actor]:d16"]
    changes = [*layout, "cluster.n_inference_servers=24", "env.node_label=browsers=true"]
    config = load_config("webgym_48_16", changes).config
    server, worker = component_configs.evaluation_role_specs(config, 96.0)
    assert (server.gpus_per_worker, server.cpus_per_worker, server.node_label) == (2.0, 1.0, "")
    assert (worker.gpus_per_worker, worker.node_label) == (0.0, "browsers=true")
    server, _ = component_configs.evaluation_role_specs(load_config("laptop").config, 1.0)
    assert (server.gpus_per_worker, server.cpus_per_worker) == (0.0, 0.5)


def test_the_program_of_the_servers_can_be_named_apart_from_the_layout() -> None:
    changes = ["inference.backend=sglang", "inference.sglang_args=--log-level 'very quiet'"]
    config = load_config("laptop", changes).config
    spec = component_configs.server_spec(config, "policy")
    assert spec.backend == "sglang"
    assert spec.extra_args[:2] == ("--dtype", "float32")
    assert spec.extra_args[-2:] == ("--log-level", "very quiet")
    assert (
        component_configs.server_spec(load_config("laptop", []).config, "policy").backend
        == "embedded"
    )


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        (["actor.row_layout=packed"], "row_layout", "packed"),
        (["actor.gradient_checkpointing=true"], "checkpointed_block_share", 1.0),
        (
            ["actor.gradient_checkpointing=true", "actor.checkpointed_block_share=0.5"],
            "checkpointed_block_share",
            0.5,
        ),
        (["actor.checkpointed_block_share=0.5"], "checkpointed_block_share", 0.0),
        (["actor.compile_blocks=true"], "is_compiled", True),
        (["actor.frozen_modules=['model.visual']"], "frozen_modules", ("model.visual",)),
        (["actor.num_head_tokens=128"], "num_head_tokens", 128),
        (["actor.publish_bucket_bytes=1024"], "publish_bucket_bytes", 1024),
        (["actor.overlap_publish=false"], "is_publish_overlapped", False),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_what_makes_training_fast_is_a_key(
    changes: list[str], field: str, value: object, tiny_processor: PolicyProcessor
) -> None:
    config = load_config("laptop", changes).config
    servers = component_configs.server_spec(config, "policy")
    actor: Any = component_configs.engine_spec(config, servers, tiny_processor).actor
    assert getattr(actor, field) == value


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    width=st.one_of(st.integers(0, 40), st.integers(1, 9000)),
    height=st.one_of(st.integers(0, 40), st.integers(1, 9000)),
)
def test_a_page_that_loads_can_be_shown_to_the_policy(
    width: int, height: int, tiny_processor: PolicyProcessor
) -> None:
    if broken_page_size(width, height) is None:
        assert tiny_processor.num_image_tokens(height, width) >= 1
        Task(suite="s", name="n", url="/", goal="g", answer="a", viewport=Viewport(width, height))
        return
    with pytest.raises(TaskError, match="viewport must be"):
        Task(suite="s", name="n", url="/", goal="g", answer="a", viewport=Viewport(width, height))


def test_screenshots_that_leave_no_room_for_an_answer_are_refused(
    tiny_processor: PolicyProcessor,
) -> None:
    component_configs.check_pictures(load_config("laptop").config, tiny_processor)
    config = load_config("laptop", ["agent.images=15"]).config
    with pytest.raises(ConfigError, match=r"15 screenshots of 160 x 224 \(525 tokens\)"):
        component_configs.check_pictures(config, tiny_processor)


@pytest.fixture(scope="module")
def tiny_processor(tmp_path_factory: pytest.TempPathFactory) -> PolicyProcessor:
    folder: Path = tmp_path_factory.mktemp("policy")
    init_policy(folder, InitPolicyConfig(warmup=WarmupConfig(num_updates=0)))
    return PolicyProcessor.from_pretrained(folder)
