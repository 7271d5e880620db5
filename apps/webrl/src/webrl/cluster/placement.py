"""Where each role's workers go: one placement group per role.

Invariants:
    * with `+` no two roles share a device, and the test rollout takes what is left free;
    * roles joined by `|` use the bundles of their anchor role;
    * ranks follow node order (Ray's bundle order does not), so neighbours share a node;
    * a layout that cannot fit is refused with both numbers before anything is placed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from webrl.cluster.ray_cluster import NodeResources, cluster_nodes
from webrl.errors import PreflightError

PLACEMENT_DEADLINE_S = 60.0
"""A placement group that passed the feasibility check is ready within seconds on a live cluster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleSpec:
    """How many workers a role has and what each of them takes."""

    name: str
    """Scheduler role: `rollout`, `actor` or `test-rollout`."""
    num_workers: int
    """Number of workers (one bundle each)."""
    cpus_per_worker: float
    """Logical CPUs of one worker."""
    gpus_per_worker: float = 0.0
    """GPUs of one worker, 0 on a CPU allocation."""
    colocate_with: str | None = None
    """Role whose bundles are shared (`|`); None for bundles of its own (`+`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RolePlacement:
    """The placement group of a role and its bundles in rank order."""

    group: PlacementGroup
    """The group that holds the role's bundles."""
    bundle_of_rank: tuple[int, ...]
    """Bundle index of each rank."""
    node_of_rank: tuple[str, ...]
    """Node id of each rank."""


def rank_order(node_of_bundle: Sequence[str], node_order: Sequence[str]) -> list[int]:
    """Return bundle indices in rank order: by node first, by bundle index within a node.

    Args:
        node_of_bundle: Node id of each bundle.
        node_order: All node ids in the order that ranks follow.
    """
    position = {node: index for index, node in enumerate(node_order)}
    return sorted(range(len(node_of_bundle)), key=lambda b: (position[node_of_bundle[b]], b))


def check_feasible(roles: Sequence[RoleSpec], nodes: Sequence[NodeResources]) -> None:
    """Refuse a layout that the cluster cannot hold.

    Raises:
        PreflightError: The roles together need more CPUs or GPUs than the cluster has.
    """
    own = [role for role in roles if role.colocate_with is None]
    for kind, needed, available in (
        (
            "GPUs",
            sum(role.num_workers * _bundle(role, roles).get("GPU", 0.0) for role in own),
            sum(node.num_gpus for node in nodes),
        ),
        (
            "CPUs",
            sum(role.num_workers * role.cpus_per_worker for role in roles),
            sum(node.num_cpus for node in nodes),
        ),
    ):
        if needed > available + 1e-6:
            parts = " + ".join(f"{role.name} {role.num_workers}" for role in roles)
            raise PreflightError(
                f"allocation_mode needs {needed:g} {kind} ({parts}), the cluster has "
                f"{available:g} on {len(nodes)} nodes. Ask for fewer workers or join a larger "
                "cluster through RAY_ADDRESS."
            )


def check_node_count(wanted: int, nodes: Sequence[NodeResources]) -> None:
    """Refuse a cluster of fewer machines than the configuration counts on.

    Raises:
        PreflightError: Some have not joined.
    """
    if len(nodes) < wanted:
        raise PreflightError(
            f"cluster.n_nodes must be <= the nodes of the Ray cluster ({len(nodes)}), got {wanted}. "
            "Let the others join it (RAY_ADDRESS names it), or lower cluster.n_nodes."
        )


def check_fragments(roles: Sequence[RoleSpec], nodes: Sequence[NodeResources]) -> None:
    """Refuse a layout whose totals fit, but whose bundles do not fit whole into nodes.

    Raises:
        PreflightError: A role has more bundles than find room, the larger roles placed before.
    """
    free = [[node.num_cpus, node.num_gpus] for node in nodes]
    for role in _in_order(roles):
        bundle = _bundle(role, roles)
        needed = (bundle["CPU"], bundle.get("GPU", 0.0))
        num_placed = 0
        for room in free:
            while num_placed < role.num_workers and all(
                has + 1e-6 >= takes for has, takes in zip(room, needed, strict=True)
            ):
                room[0] -= needed[0]
                room[1] -= needed[1]
                num_placed += 1
        if num_placed < role.num_workers:
            left = ", ".join(f"{cpus:g} CPUs and {gpus:g} GPUs" for cpus, gpus in free[:8])
            raise PreflightError(
                f"role {role.name!r} asks for {role.num_workers} bundles of {_text(bundle)}, and "
                f"{num_placed} fit whole into the cluster's {len(nodes)} nodes although the totals "
                f"fit; left on the nodes: {left}. Give the nodes CPUs to match their GPUs, or ask "
                "for fewer workers."
            )


def _in_order(roles: Sequence[RoleSpec]) -> list[RoleSpec]:
    """Return the roles with bundles of their own, those with the most bundles first."""
    own = [role for role in roles if role.colocate_with is None]
    return sorted(own, key=lambda role: -role.num_workers)


def _bundle(role: RoleSpec, roles: Sequence[RoleSpec]) -> dict[str, float]:
    members = [role, *(other for other in roles if other.colocate_with == role.name)]
    bundle = {"CPU": sum(member.cpus_per_worker for member in members)}
    gpus = sum(member.gpus_per_worker for member in members)
    return bundle | {"GPU": gpus} if gpus else bundle


def _text(bundle: Mapping[str, float]) -> str:
    return " + ".join(f"{amount:g} {kind}" for kind, amount in bundle.items())


def setup_mixed_layout(roles: Sequence[RoleSpec]) -> dict[str, RolePlacement]:
    """Create one placement group per role on the connected cluster.

    Roles with the most bundles go first, so that whole nodes are used before fragments.

    Raises:
        PreflightError: The layout does not fit, or a group is not ready by the deadline.
    """
    nodes = cluster_nodes()
    check_feasible(roles, nodes)
    check_fragments(roles, nodes)
    placements: dict[str, RolePlacement] = {}
    order = [node.node_id for node in nodes]
    try:
        for role in _in_order(roles):
            placements[role.name] = _place(role, _bundle(role, roles), order)
    except PreflightError:
        release_layout(placements)
        raise
    for role in roles:
        if role.colocate_with is not None:
            placements[role.name] = placements[role.colocate_with]
    return placements


def release_layout(placements: Mapping[str, RolePlacement]) -> None:
    """Remove every placement group of a layout."""
    for group in {
        placement.group.id: placement.group for placement in placements.values()
    }.values():
        remove_placement_group(group)


def _place(role: RoleSpec, bundle: Mapping[str, float], order: Sequence[str]) -> RolePlacement:
    group = placement_group([dict(bundle) for _ in range(role.num_workers)], strategy="PACK")
    ready, _ = ray.wait([group.ready()], timeout=PLACEMENT_DEADLINE_S)
    if not ready:
        remove_placement_group(group)
        raise PreflightError(
            f"role {role.name!r} asks for {role.num_workers} bundles of {_text(bundle)}, and the "
            f"cluster could not place them within {PLACEMENT_DEADLINE_S:g} s: other work holds its "
            f"devices. Free of {len(order)} nodes are {_free_text()}. Wait for it, or end it."
        )
    table = placement_group_table(group)["bundles_to_node_id"]
    node_of_bundle = [table[index] for index in range(role.num_workers)]
    ranks = rank_order(node_of_bundle, order)
    return RolePlacement(
        group=group,
        bundle_of_rank=tuple(ranks),
        node_of_rank=tuple(node_of_bundle[bundle_index] for bundle_index in ranks),
    )


def _free_text() -> str:
    free = ray.available_resources()
    return _text({kind: free.get(kind, 0.0) for kind in ("CPU", "GPU")})
