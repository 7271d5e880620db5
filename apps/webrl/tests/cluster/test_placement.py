"""Feasibility and rank order of a layout, without a cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webrl.cluster.placement import (
    RoleSpec,
    check_feasible,
    check_fragments,
    check_node_count,
)
from webrl.cluster.ray_cluster import NodeResources
from webrl.config import load_config
from webrl.errors import PreflightError
from webrl.launch.component_configs import role_specs


def node(
    name: str, gpus: float = 8.0, cpus: float = 64.0, *, has_browsers: bool = False
) -> NodeResources:
    labels = {"browsers": "true"} if has_browsers else {}
    return NodeResources(node_id=name, address=name, num_cpus=cpus, num_gpus=gpus, labels=labels)


def role(name: str, count: int, gpus: float = 1.0, shares: str | None = None) -> RoleSpec:
    return RoleSpec(
        name=name,
        num_workers=count,
        cpus_per_worker=1.0,
        gpus_per_worker=gpus,
        colocate_with=shares,
    )


@pytest.mark.requirement("placement-group-per-role")
def test_ranks_follow_nodes_and_roles_take_whole_ones() -> None:
    nodes = [node(f"n{index}") for index in range(3)]
    places = check_fragments([role("actor", 8), role("rollout", 16)], nodes)
    assert places == {"rollout": ["n0"] * 8 + ["n1"] * 8, "actor": ["n2"] * 8}


PUBLISHED = [
    role("rollout", 48),
    role("actor", 16),
    RoleSpec(name="rollout-worker", num_workers=40, cpus_per_worker=1.0, is_spread=True),
]


@pytest.mark.parametrize("cpus", [96.0, 40.0, 16.0, 13.0])
def test_workers_leave_the_cpus_that_servers_and_ranks_need_and_are_spread(cpus: float) -> None:
    nodes = [node(f"n{index}", cpus=cpus) for index in range(8)]
    places = check_fragments(PUBLISHED, nodes)
    assert sorted(Counter(places["rollout-worker"]).values()) == [5] * 8
    assert sorted(Counter(places["rollout"] + places["actor"]).values()) == [8] * 8


@pytest.mark.parametrize("cpus", [96.0, 40.0])
def test_the_published_configuration_and_its_test_rollout_overload_no_node(cpus: float) -> None:
    changes = ["cluster.n_nodes=9", "test_rollout.enabled=true"]
    roles = role_specs(load_config("webgym_48_16", changes).config, 9 * cpus)
    nodes = [node(f"n{index}", cpus=cpus) for index in range(9)]
    places = check_fragments(roles, nodes)
    taken: Counter[str] = Counter()
    for each in roles:
        for place in places[each.name]:
            taken[place] += round(100 * each.cpus_per_worker)
    assert max(taken.values()) <= 100 * cpus
    assert max(Counter(places["rollout-worker"]).values()) == 5


@settings(deadline=None, max_examples=150)
@given(
    sizes=st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from([0.0, 1.0, 2.5, 4.0, 9.0]), st.booleans()),
        min_size=1,
        max_size=4,
    ),
    gpu_roles=st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0.5, 1.0, 2.2])), max_size=2),
    num_workers=st.integers(0, 6),
    num_thick=st.integers(0, 2),
    is_spread=st.booleans(),
    label=st.sampled_from(["", "browsers=true"]),
    seed=st.randoms(use_true_random=False),
)
def test_what_can_be_placed_passes_whatever_the_order_of_nodes_and_roles(
    sizes: list[tuple[int, float, bool]],
    gpu_roles: list[tuple[int, float]],
    num_workers: int,
    num_thick: int,
    is_spread: bool,
    label: str,
    seed: Any,
) -> None:
    nodes = [
        node(f"n{index}", gpus, cpus, has_browsers=has_browsers)
        for index, (gpus, cpus, has_browsers) in enumerate(sizes)
    ]
    roles = [
        RoleSpec(name=f"r{index}", num_workers=count, cpus_per_worker=cpus, gpus_per_worker=1.0)
        for index, (count, cpus) in enumerate(gpu_roles)
    ]
    if num_workers:
        worker = RoleSpec(
            name="w",
            num_workers=num_workers,
            cpus_per_worker=1.5,
            is_spread=is_spread,
            node_label=label,
        )
        roles.append(worker)
        thick = replace(worker, name="t", num_workers=num_thick, cpus_per_worker=2.5)
        roles += [thick] if num_thick else []

    def places() -> dict[str, list[str]] | None:
        try:
            return check_fragments(roles, nodes)
        except PreflightError:
            return None

    is_possible = by_brute_force(roles, nodes)
    for _ in range(3):
        found = places()
        assert (found is not None) == is_possible
        for one in nodes if found else ():
            here = {name: ids.count(one.node_id) for name, ids in (found or {}).items()}
            assert sum(here[r.name] * r.cpus_per_worker for r in roles) <= one.num_cpus + 1e-9
            assert sum(here[r.name] * r.gpus_per_worker for r in roles) <= one.num_gpus
            assert all(not here[r.name] or allows(one, r.node_label) for r in roles)
        assert found is None or all(len(found[r.name]) == r.num_workers for r in roles)
        seed.shuffle(nodes)
        seed.shuffle(roles)


def allows(one: NodeResources, label: str) -> bool:
    return not label or "browsers" in one.labels


def by_brute_force(roles: list[RoleSpec], nodes: list[NodeResources]) -> bool:
    """Whether any way to put the bundles whole into the nodes exists."""
    bundles = [
        (each.cpus_per_worker, each.gpus_per_worker, each.node_label)
        for each in roles
        for _ in range(each.num_workers)
    ]
    states = {
        tuple(sorted((one.num_cpus, one.num_gpus, allows(one, "browsers=true")) for one in nodes))
    }
    for cpus, gpus, label in bundles:
        states = {
            tuple(
                sorted(
                    (*state[:index], (has[0] - cpus, has[1] - gpus, has[2]), *state[index + 1 :])
                )
            )
            for state in states
            for index, has in enumerate(state)
            if has[0] >= cpus and has[1] >= gpus and (has[2] or not label)
        }
    return bool(states)


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
    check_node_count(2, 8, [node("a"), node("b"), node("head", gpus=0.0)])
    check_node_count(2, 0, [node("a", gpus=0.0), node("b", gpus=0.0)])
    with pytest.raises(PreflightError, match=r"cluster.n_nodes must be <= .* \(1 of 1\), got 2"):
        check_node_count(2, 0, [node("a")])
    with pytest.raises(PreflightError, match=r"n_gpus_per_node = 8 GPUs \(1 of 2\), got 2"):
        check_node_count(2, 8, [node("a"), node("b", gpus=4.0)])


def test_a_label_that_no_node_has_is_refused_by_name() -> None:
    workers = RoleSpec(
        name="rollout-worker", num_workers=2, cpus_per_worker=1.0, node_label="browsers=true"
    )
    with pytest.raises(PreflightError, match=r"env.node_label must be .* got 'browsers=true'"):
        check_feasible([workers], [node("a"), node("b")])
    nodes = [node("a"), node("b", gpus=0.0, has_browsers=True)]
    assert check_fragments([workers], nodes) == {"rollout-worker": ["b", "b"]}


def test_the_devices_of_a_server_are_of_one_node() -> None:
    servers = [role("rollout", 5, gpus=4.0)]
    assert Counter(check_fragments(servers, [node(f"n{i}") for i in range(3)])["rollout"]) == {
        "n0": 2,
        "n1": 2,
        "n2": 1,
    }
    with pytest.raises(PreflightError, match="and 3 fit whole into the cluster's 3 nodes"):
        check_fragments([role("rollout", 4, gpus=4.0)], [node(f"n{i}", gpus=6.0) for i in range(3)])


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
