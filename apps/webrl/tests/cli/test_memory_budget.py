"""What a run takes of memory, beside what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen3VLConfig
from webrl.cli.main import main
from webrl.config import WebRLConfig, load_config
from webrl.memory_budget import CONTEXT_BYTES, count_memory, find_shortages, read_shape
from webrl.policy import InitPolicyConfig, WarmupConfig, init_policy
from webrl.rehearse.manifest import TEXT, VISION

FOUR = {"hidden_size": 2560, "intermediate_size": 9728, "tie_word_embeddings": True}
FOUR_VISION = {
    "depth": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "out_hidden_size": 2560,
    "deepstack_visual_indexes": [5, 11, 17],
}


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with the configuration of the 4B and the 8B policy, and no weights."""
    folders: dict[str, Path] = {}
    for name, text, vision in (("8b", {}, {}), ("4b", FOUR, FOUR_VISION)):
        folders[name] = tmp_path_factory.mktemp(name)
        is_tied = bool(text)
        config: Any = Qwen3VLConfig(
            text_config={**TEXT, **text},
            vision_config={**VISION, **vision},
            tie_word_embeddings=is_tied,
        )
        written = json.loads(config.to_json_string(use_diff=False))
        (folders[name] / "config.json").write_text(json.dumps(written))
    return folders


def one_node(policy: Path, *changes: str) -> WebRLConfig:
    return load_config("one_node_8gpu", [f"policy.path={policy}", *changes]).config


ONE_RANK = (
    "allocation_mode=sglang[rollout]:d5+fsdp[actor]:d1",
    "actor.num_head_tokens=2048",
)


@pytest.mark.parametrize(
    ("name", "changes", "measured_gib"),
    [
        ("8b", ("actor.compile_blocks=true",), 77.169),
        ("8b", (), 77.492),
        ("4b", ("actor.frozen_modules=[]", "actor.optimizer.offload=false"), 79.534),
    ],
    ids=["8b-text-compiled", "8b-image", "4b-image-trained"],
)
def test_the_budget_of_a_rank_is_within_a_twentieth_of_what_an_h200_measured(
    policies: dict[str, Path], name: str, changes: tuple[str, ...], measured_gib: float
) -> None:
    config = one_node(policies[name], *ONE_RANK, *changes)
    budget = count_memory(config, read_shape(policies[name], config.actor.frozen_modules))
    # Torch's own peak leaves the context out.
    assert budget.rank_bytes - CONTEXT_BYTES == pytest.approx(measured_gib * 2**30, rel=0.05)


def test_one_node_of_80_gb_cards_holds_an_8b_policy_only_with_its_settings(
    policies: dict[str, Path],
) -> None:
    assert find_shortages(one_node(policies["8b"])) == ([], [])
    without = one_node(policies["8b"], "actor.optimizer.offload=false", "actor.frozen_modules=[]")
    certain, likely = find_shortages(without)
    assert certain == []
    assert likely[0].startswith("a trainer rank needs about ")
    smaller = one_node(policies["8b"], "cluster.gpu_memory_bytes=24_000_000_000")
    assert find_shortages(smaller)[0][0].startswith("a trainer rank needs 35.4 GB for weights 17.5")


@pytest.mark.requirement("memory-budget")
def test_a_dry_run_counts_memory_and_refuses_what_a_named_card_can_not_hold(
    policies: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "--config", "one_node_8gpu", f"policy.path={policies['8b']}", "--dry-run"]
    main(command)
    out = capsys.readouterr().out
    assert "# memory, in GB" in out
    assert "weights 17.5, gradients 16.4, CUDA 1.5" in out
    assert "trainer rank, host 87.1: moments 32.8, staged checkpoint 50.3" in out
    assert main([*command, "cluster.gpu_memory_bytes=24000000000"]) == 2
    assert "before any activation, of 24.0" in capsys.readouterr().err


def test_moments_and_publish_are_counted_for_every_rank_and_device(
    policies: dict[str, Path],
) -> None:
    layout = "allocation_mode=sglang[rollout]:d2t2+fsdp[actor]:d2"
    changes = (layout, "cluster.n_inference_servers=2", "actor.kl_ctl=0.1")
    config = one_node(policies["8b"], *changes, "test_rollout.enabled=false")
    shape = read_shape(policies["8b"])
    budget = count_memory(config, shape)
    assert shape.num_weights == 8_767_123_696
    assert budget.rank_state["reference"] == budget.rank_state["weights"] == 2 * shape.num_weights
    assert budget.server["weights"] == shape.num_weights
    assert budget.publish == 2 * shape.num_weights


def test_a_dry_run_says_what_a_screenshot_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "policy"
    init_policy(policy, InitPolicyConfig(warmup=WarmupConfig(num_updates=0)))
    command = ["train", "--config", "laptop", f"policy.path={policy}", "--dry-run"]
    main(command)
    assert "screenshots of 160 x 224, shown at 160 x 224: 35 tokens each" in capsys.readouterr().out
    main([*command, "agent.max_pixels=2240", "agent.images=2"])
    out = capsys.readouterr().out
    assert "shown at 40 x 56: 8 tokens each; agent.images = 2 and an answer of 16 leave " in out
