"""Feasibility and rank order of a layout, without a cluster."""

from __future__ import annotations

import pytest
from webrl.cluster.placement import (
    RoleSpec,
    check_feasible,
    check_fragments,
    check_node_count,
    rank_order,
)
from webrl.cluster.ray_cluster import NodeResources
from webrl.errors import PreflightError


def node(name: str, gpus: float = 8.0, cpus: float = 64.0) -> NodeResources:
    return NodeResources(node_id=name, address=name, num_cpus=cpus, num_gpus=gpus)


def role(name: str, count: int, gpus: float = 1.0, shares: str | None = None) -> RoleSpec:
    return RoleSpec(
        name=name,
        num_workers=count,
        cpus_per_worker=1.0,
        gpus_per_worker=gpus,
        colocate_with=shares,
    )


@pytest.mark.requirement("placement-group-per-role")
def test_ranks_follow_nodes_and_not_bundle_indices() -> None:
    assert rank_order(["n1", "n2", "n2", "n1"], ["n1", "n2"]) == [0, 3, 1, 2]


def test_a_layout_that_can_never_fit_names_both_numbers() -> None:
    with pytest.raises(PreflightError, match=r"needs 64 GPUs .* the cluster has 8 on 1 nodes"):
        check_feasible([role("rollout", 48), role("actor", 16)], [node("a")])


def test_48_and_16_fit_eight_nodes_of_eight() -> None:
    check_feasible([role("rollout", 48), role("actor", 16)], [node(f"n{i}") for i in range(8)])


@pytest.mark.requirement("test-rollout-sizing")
def test_a_ninth_node_is_needed_for_eight_test_gpus() -> None:
    roles = [role("rollout", 48), role("actor", 16), role("test-rollout", 8)]
    with pytest.raises(PreflightError, match="needs 72 GPUs"):
        check_feasible(roles, [node(f"n{i}") for i in range(8)])
    check_feasible(roles, [node(f"n{i}") for i in range(9)])


def test_a_machine_that_has_not_joined_is_missed_whatever_the_roles_need() -> None:
    check_node_count(2, [node("a"), node("b"), node("head", gpus=0.0)])
    with pytest.raises(PreflightError, match=r"cluster.n_nodes must be <= .* \(1\), got 2"):
        check_node_count(2, [node("a")])


def test_shared_devices_are_counted_once() -> None:
    shared = [role("rollout", 8, 0.5), role("actor", 8, 0.5, shares="rollout")]
    check_feasible(shared, [node("a")])
    with pytest.raises(PreflightError, match="needs 8 GPUs"):
        check_feasible(shared, [node("a", gpus=7.0)])


def test_cpus_are_checked_too() -> None:
    with pytest.raises(PreflightError, match="needs 9 CPUs"):
        check_feasible([role("rollout", 9, gpus=0.0)], [node("a", gpus=0.0, cpus=8.0)])


def test_bundles_that_fit_no_node_whole_are_refused_with_the_numbers() -> None:
    roles = [role("rollout", 10), role("actor", 4)]
    # 16 GPUs and 16 CPUs in all, but one node has the GPUs and another one the CPUs.
    nodes = [node("a", gpus=8.0, cpus=4.0), node("b", gpus=8.0, cpus=12.0)]
    check_feasible(roles, nodes)
    with pytest.raises(PreflightError) as caught:
        check_fragments(roles, nodes)
    assert (
        "role 'actor' asks for 4 bundles of 1 CPU + 1 GPU, and 2 fit whole into the cluster's 2 "
        "nodes although the totals fit; left on the nodes: 0 CPUs and 4 GPUs, 4 CPUs and 0 GPUs."
    ) in str(caught.value)
    check_fragments(roles, [node("a", cpus=8.0), node("b", cpus=8.0)])
