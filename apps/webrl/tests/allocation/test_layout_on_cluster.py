"""The published layout on a real Ray cluster of nine nodes with eight declared GPUs each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    # Nine nodes start on a few cores: each may take long.
    "RAY_raylet_start_wait_time_s": "120",
}
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("cluster_program.py")


@pytest.fixture(scope="module")
def layouts() -> dict[str, Any]:
    """What the program found on a real cluster of nine nodes."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAM)],
        env={**os.environ, **RAY_SETTINGS},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.requirement("roles-on-own-devices", "placement-group-per-role")
def test_the_published_layout_takes_whole_nodes_of_a_real_cluster(layouts: dict[str, Any]) -> None:
    found = layouts["published"]
    assert found["per_node"] == {"rollout": [8] * 6, "actor": [8, 8], "test-rollout": [8]}
    assert found["num_nodes"] == 9
    assert found["num_runs"] == {"rollout": 6, "actor": 2, "test-rollout": 1}


def test_a_layout_that_can_not_fit_is_refused_at_once(layouts: dict[str, Any]) -> None:
    assert "needs 80 GPUs (rollout 64 + actor 16), the cluster has 72" in layouts["infeasible"]


def test_bundles_that_fit_no_node_whole_are_refused_at_once(layouts: dict[str, Any]) -> None:
    text = layouts["fragmented"]
    assert "role 'actor' asks for 16 bundles of 5.5 CPU + 1 GPU, and 15 fit whole" in text


def test_devices_that_others_hold_are_counted(layouts: dict[str, Any]) -> None:
    text = layouts["busy"]
    assert "role 'actor' asks for 16 bundles of 1 CPU + 1 GPU, and 4 fit whole into what" in text
    assert "Other work held its devices for 5 s." in text


def test_the_published_configuration_is_laid_out_with_all_its_workers(
    layouts: dict[str, Any],
) -> None:
    found = layouts["configured"]
    assert found["rollout"] == [8] * 6
    assert (found["actor"], found["test-rollout"]) == ([8, 8], [8])
    # One node has the worker of the test rollout, of 24 CPUs.
    assert found["test-worker"] == [1]
    assert found["rollout-worker"] == [5] * 8


def test_browsers_go_to_the_labelled_node_alone(layouts: dict[str, Any]) -> None:
    found = layouts["labelled"]
    assert (found["rollout-worker"], found["test-worker"]) == ([40], [1])
    assert found["rollout"] == [8] * 6
    assert "env.node_label must be the label of a node" in layouts["unlabelled"]
    assert "role 'rollout-worker' asks for 40 bundles of 4 CPU, and 8 fit" in layouts["too_many"]
    assert "or lower env.cpus_per_slot" in layouts["too_many"]


@pytest.mark.requirement("placement-group-per-role")
def test_a_tensor_parallel_server_sees_devices_of_its_own_on_one_node(
    layouts: dict[str, Any],
) -> None:
    found = layouts["tensor_parallel"]
    assert (found["rollout"], found["actor"], found["test-rollout"]) == ([4] * 6, [8, 8], [4])
    devices = [text.split(",") for text in layouts["devices"]]
    assert [len(each) for each in devices] == [2, 2]
    assert len({device for each in devices for device in each}) == 4


def test_the_head_remembers_no_call_of_a_worker(layouts: dict[str, Any]) -> None:
    assert layouts["remembered"] == ["task::Other.answer"]
