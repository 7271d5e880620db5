"""Roles on nodes: rank order, feasibility with numbers, and the published layout on a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from webrl.errors import PlacementError
from webrl.system.cluster import NodeResources
from webrl.system.placement import RoleSpec, check_feasible, rank_order

RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    # Nine nodes start on a few cores: each may take long.
    "RAY_raylet_start_wait_time_s": "120",
}
PROGRAM = Path(__file__).with_name("cluster_program.py")


def nodes(count: int, gpus: float, cpus: float = 16.0) -> list[NodeResources]:
    return [
        NodeResources(node_id=f"n{index}", address=f"10.0.0.{index}", num_cpus=cpus, num_gpus=gpus)
        for index in range(count)
    ]


def role(name: str, count: int, gpus: float = 1.0, shares: str | None = None) -> RoleSpec:
    return RoleSpec(
        name=name,
        num_workers=count,
        cpus_per_worker=0.1,
        gpus_per_worker=gpus,
        colocate_with=shares,
    )


def test_ranks_follow_nodes_and_not_bundles_br_61() -> None:
    assert rank_order(["n1", "n2", "n2", "n1"], ["n1", "n2"]) == [0, 3, 1, 2]
    assert rank_order(["n2", "n1"], ["n1", "n2"]) == [1, 0]


def test_asking_for_more_than_there_is_names_both_numbers_br_63() -> None:
    with pytest.raises(PlacementError, match=r"needs 64 GPUs .*the cluster has 8 on 1 nodes"):
        check_feasible([role("rollout", 48), role("actor", 16)], nodes(1, 8))
    with pytest.raises(PlacementError, match=r"needs 2 CPUs .*the cluster has 1 on 1 nodes"):
        check_feasible([role("rollout", 20, gpus=0)], nodes(1, 0, cpus=1))


def test_what_fits_exactly_is_accepted() -> None:
    check_feasible([role("rollout", 48), role("actor", 16)], nodes(8, 8))


def test_roles_that_share_devices_are_counted_once() -> None:
    check_feasible([role("rollout", 8), role("actor", 8, shares="rollout")], nodes(1, 8))


@pytest.fixture(scope="module")
def layouts() -> dict[str, Any]:
    """What the program found on a real cluster of nine nodes."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAM)],
        env={**os.environ, **RAY_SETTINGS},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.ray
@pytest.mark.slow
def test_the_published_layout_takes_whole_nodes_of_a_real_cluster(layouts: dict[str, Any]) -> None:
    found = layouts["published"]
    assert found["per_node"] == {"rollout": [8] * 6, "actor": [8, 8], "test-rollout": [8]}
    assert found["num_nodes"] == 9
    assert found["num_runs"] == {"rollout": 6, "actor": 2, "test-rollout": 1}


@pytest.mark.ray
@pytest.mark.slow
def test_a_layout_that_can_not_fit_is_refused_at_once_br_63(layouts: dict[str, Any]) -> None:
    assert "needs 80 GPUs (rollout 64 + actor 16), the cluster has 72" in layouts["infeasible"]
