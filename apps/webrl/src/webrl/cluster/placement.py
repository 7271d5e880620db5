"""Where each role's workers go: one placement group per role.

Invariants:
    * with `+` no two roles share a device, and the test rollout takes what is left free;
    * roles joined by `|` use the bundles of their anchor role;
    * ranks follow node order (Ray's bundle order does not), so neighbours share a node;
    * the devices of one worker are one bundle, so they are of one node;
    * browsers go to the nodes that a label names, if one does;
    * which node holds a bundle is computed once, from what the nodes have free, and each bundle is
      pinned to its node: what the check lets pass can be placed, and what can be placed passes,
      whatever the order of the nodes;
    * a layout that cannot fit is refused with both numbers before anything is placed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    remove_placement_group,
)

from webrl.cluster.ray_cluster import NodeResources, cluster_nodes, free_nodes
from webrl.errors import PreflightError

PLACEMENT_DEADLINE_S = 60.0
"""A placement group that passed the feasibility check is ready within seconds on a live cluster."""

POLL_S = 0.5
"""Between two looks at what is free while others hold devices."""

UNITS = 10_000
"""Ray counts resources in these parts of one."""

NODE_LABEL = "ray.io/node-id"
"""Label that Ray gives each node."""

Bundle = tuple[int, int, str]
"""GPUs and CPUs of a bundle, in units, and the label of the nodes that may hold it."""

Room = tuple[int, int, frozenset[str]]
"""GPUs and CPUs of a node, in units, and its labels; every node has the empty one."""


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
    is_spread: bool = False
    """Give each bundle the node with the most free CPUs instead of filling node after node."""
    node_label: str = ""
    """Label, written `name=value`, of the only nodes that may hold it; any node when empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RolePlacement:
    """The placement group of a role and its bundles in rank order."""

    group: PlacementGroup
    """The group that holds the role's bundles."""
    bundle_of_rank: tuple[int, ...]
    """Bundle index of each rank."""
    node_of_rank: tuple[str, ...]
    """Node id of each rank."""


def check_feasible(roles: Sequence[RoleSpec], nodes: Sequence[NodeResources]) -> None:
    """Refuse a layout that the cluster cannot hold.

    Raises:
        PreflightError: The roles together need more CPUs or GPUs than the cluster has, or no node has
            the label that one of them asks for.
    """
    for label in sorted({role.node_label for role in roles if role.node_label}):
        if not any(label in _labels(node) for node in nodes):
            raise PreflightError(
                f"env.node_label must be the label of a node of the cluster, got {label!r}, which none "
                f"of {len(nodes)} nodes has. Start them with: ray start --labels {label} ..., or unset it."
            )
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


def check_node_count(wanted: int, gpus_per_node: int, nodes: Sequence[NodeResources]) -> None:
    """Refuse a cluster of fewer machines than the configuration counts on.

    Args:
        wanted: Machines with `gpus_per_node` GPUs each; others may be there too.

    Raises:
        PreflightError: Some have not joined, or have fewer GPUs.
    """
    count = sum(node.num_gpus >= gpus_per_node for node in nodes)
    if count < wanted:
        kind = f" with cluster.n_gpus_per_node = {gpus_per_node} GPUs" if gpus_per_node else ""
        raise PreflightError(
            f"cluster.n_nodes must be <= the nodes of the Ray cluster{kind} ({count} of "
            f"{len(nodes)}), got {wanted}. Let the others join it (RAY_ADDRESS names it), or lower it."
        )


def with_at_most(
    nodes: Sequence[NodeResources], gpus_per_node: int | None
) -> tuple[NodeResources, ...]:
    """Return the nodes with no more GPUs each than a run may take of them; None for all."""
    if gpus_per_node is None:
        return tuple(nodes)
    return tuple(replace(node, num_gpus=min(node.num_gpus, gpus_per_node)) for node in nodes)


def check_fragments(
    roles: Sequence[RoleSpec], nodes: Sequence[NodeResources]
) -> dict[str, list[str]]:
    """Return the node id of each bundle by role, in the order of the nodes.

    Raises:
        PreflightError: The totals fit, but there is no way to put the bundles whole into nodes; the
            message says how far filling node after node comes.
    """
    places = _assign(roles, nodes)
    if places is None:
        raise PreflightError(
            _shortfall(roles, nodes, "the cluster's", "although the totals fit")
            + " Give the nodes CPUs to match their GPUs, ask for fewer workers, or lower "
            "env.cpus_per_slot."
        )
    return places


def _assign(
    roles: Sequence[RoleSpec], nodes: Sequence[NodeResources]
) -> dict[str, list[str]] | None:
    """Return the node id of each bundle by role, None only where no way to place them exists."""
    own = _in_order(roles)
    bundle_of: dict[str, Bundle] = {
        role.name: (*_units(_bundle(role, roles)), role.node_label) for role in own
    }
    kinds = sorted(set(bundle_of.values()), reverse=True)
    counts = tuple(
        sum(role.num_workers for role in own if bundle_of[role.name] == kind) for kind in kinds
    )
    rooms: list[Room] = [
        (*_units({"GPU": node.num_gpus, "CPU": node.num_cpus}), _labels(node)) for node in nodes
    ]
    taken = _fill(kinds, counts, rooms)
    if taken is None:
        return None
    left = {kind: [number[k] for number in taken] for k, kind in enumerate(kinds)}
    held: dict[str, list[int]] = {}
    for role in own:
        places = left[bundle_of[role.name]]
        held[role.name] = []
        for index in range(len(nodes)):
            fitting = min(places[index], role.num_workers - len(held[role.name]))
            places[index] -= fitting
            held[role.name] += [index] * fitting
    _spread(own, bundle_of, held, rooms)
    return {name: [nodes[index].node_id for index in places] for name, places in held.items()}


def _spread(
    own: Sequence[RoleSpec],
    bundle_of: Mapping[str, Bundle],
    held: dict[str, list[int]],
    rooms: Sequence[Room],
) -> None:
    """Give the bundles of roles that are to be spread the freest nodes, where all of them fit so."""
    free = [cpus for _, cpus, _ in rooms]
    spread = [role for role in own if role.is_spread and not bundle_of[role.name][0]]
    for role in own:
        for index in held[role.name] if role not in spread else ():
            free[index] -= bundle_of[role.name][1]
    found: dict[str, list[int]] = {}
    # The thickest bundles first: thin ones still fit into what those leave.
    for role in sorted(spread, key=lambda role: -bundle_of[role.name][1]):
        needed, places = bundle_of[role.name][1], list[int]()
        allowed = [index for index, room in enumerate(rooms) if role.node_label in room[2]]
        for _ in range(role.num_workers):
            index = max(allowed, key=lambda index: free[index])
            if free[index] < needed:
                return
            free[index] -= needed
            places.append(index)
        found[role.name] = sorted(places)
    held.update(found)


def _fill(
    kinds: Sequence[Bundle], counts: tuple[int, ...], rooms: Sequence[Room]
) -> list[tuple[int, ...]] | None:
    """Return how many bundles of each kind every node takes, None where no way exists.

    Args:
        kinds: Different bundles, those with the most GPUs first.
        counts: Of each kind.
        rooms: What each node has.
    """
    failed: set[tuple[int, tuple[int, ...]]] = set()

    def fill(index: int, wanted: tuple[int, ...]) -> list[tuple[int, ...]] | None:
        if not any(wanted):
            return [(0,) * len(kinds)] * (len(rooms) - index)
        rest = rooms[index:]
        fits = all(
            count <= sum(_most(kind, room) for room in rest)
            for kind, count in zip(kinds, wanted, strict=True)
        )
        if not fits or (index, wanted) in failed:
            return None
        for taken in _choices(kinds, wanted, rooms[index]):
            after = fill(index + 1, tuple(w - t for w, t in zip(wanted, taken, strict=True)))
            if after is not None:
                return [taken, *after]
        failed.add((index, wanted))
        return None

    return fill(0, counts)


def _choices(
    kinds: Sequence[Bundle], wanted: Sequence[int], room: Room
) -> Iterator[tuple[int, ...]]:
    """Yield what one node can take, the most of the first kind first, always all of the last."""
    most = min(wanted[0], _most(kinds[0], room))
    if len(kinds) == 1:
        yield (most,)
        return
    (gpus, cpus, _), (all_gpus, all_cpus, labels) = kinds[0], room
    for number in range(most, -1, -1):
        less = (all_gpus - number * gpus, all_cpus - number * cpus, labels)
        for others in _choices(kinds[1:], wanted[1:], less):
            yield (number, *others)


def _most(kind: Bundle, room: Room) -> int:
    """Return how many bundles of a kind fit into a room."""
    if kind[2] not in room[2]:
        return 0
    return min(
        (has // takes for takes, has in zip(kind[:2], room[:2], strict=True) if takes), default=0
    )


def _labels(node: NodeResources) -> frozenset[str]:
    return frozenset({"", *(f"{name}={value}" for name, value in node.labels.items())})


def _units(resources: Mapping[str, float]) -> tuple[int, int]:
    gpus, cpus = (round(UNITS * resources.get(name, 0.0)) for name in ("GPU", "CPU"))
    return gpus, cpus


def _shortfall(
    roles: Sequence[RoleSpec], nodes: Sequence[NodeResources], whose: str, although: str
) -> str:
    """Return how far filling node after node comes, for people."""
    # The search knows better, but not which role to blame.
    role, bundle, num_placed = roles[0], {"CPU": 0.0}, 0
    free = [[node.num_cpus, node.num_gpus] for node in nodes]
    labels = [_labels(node) for node in nodes]
    for role in _in_order(roles):
        bundle = _bundle(role, roles)
        needed = (bundle["CPU"], bundle.get("GPU", 0.0))
        num_placed = 0
        for room, names in zip(free, labels, strict=True):
            while (
                role.node_label in names
                and num_placed < role.num_workers
                and all(has + 1e-6 >= takes for has, takes in zip(room, needed, strict=True))
            ):
                room[0] -= needed[0]
                room[1] -= needed[1]
                num_placed += 1
        if num_placed < role.num_workers:
            break
    left = ", ".join(f"{cpus:g} CPUs and {gpus:g} GPUs" for cpus, gpus in free[:8])
    return (
        f"role {role.name!r} asks for {role.num_workers} bundles of {_text(bundle)}, and "
        f"{num_placed} fit whole into {whose} {len(nodes)} nodes {although}; left on the nodes: "
        f"{left}."
    )


def _in_order(roles: Sequence[RoleSpec]) -> list[RoleSpec]:
    """Return the roles with bundles of their own: those with GPUs, then those with most bundles."""
    own = [role for role in roles if role.colocate_with is None]
    return sorted(own, key=lambda role: (not role.gpus_per_worker, -role.num_workers))


def _bundle(role: RoleSpec, roles: Sequence[RoleSpec]) -> dict[str, float]:
    members = [role, *(other for other in roles if other.colocate_with == role.name)]
    bundle = {"CPU": sum(member.cpus_per_worker for member in members)}
    gpus = sum(member.gpus_per_worker for member in members)
    return bundle | {"GPU": gpus} if gpus else bundle


def _text(bundle: Mapping[str, float]) -> str:
    return " + ".join(f"{amount:g} {kind}" for kind, amount in bundle.items())


def setup_mixed_layout(
    roles: Sequence[RoleSpec], *, gpus_per_node: int | None = None
) -> dict[str, RolePlacement]:
    """Create one placement group per role on the connected cluster.

    Args:
        gpus_per_node: Most GPUs that the roles together take of one node; all of them when None.

    Raises:
        PreflightError: The layout does not fit, or a group is not ready by the deadline.
    """
    nodes = with_at_most(cluster_nodes(), gpus_per_node)
    check_feasible(roles, nodes)
    check_fragments(roles, nodes)
    deadline = time.monotonic() + PLACEMENT_DEADLINE_S
    while (
        places := _assign(roles, free := with_at_most(free_nodes(nodes), gpus_per_node))
    ) is None:
        # Of a run that has just ended some is given back late.
        if time.monotonic() > deadline:
            raise _busy(_shortfall(roles, free, "what other work leaves of", "now"))
        time.sleep(POLL_S)
    placements: dict[str, RolePlacement] = {}
    try:
        for role in _in_order(roles):
            placements[role.name] = _place(role, _bundle(role, roles), places[role.name], deadline)
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


def _place(
    role: RoleSpec, bundle: Mapping[str, float], places: Sequence[str], deadline: float
) -> RolePlacement:
    group = placement_group(
        [dict(bundle) for _ in places],
        bundle_label_selector=[{NODE_LABEL: node_id} for node_id in places],
    )
    ready, _ = ray.wait([group.ready()], timeout=max(POLL_S, deadline - time.monotonic()))
    if not ready:
        remove_placement_group(group)
        raise _busy(f"role {role.name!r} got none of the devices that were free just now.")
    return RolePlacement(
        group=group, bundle_of_rank=tuple(range(len(places))), node_of_rank=tuple(places)
    )


def _busy(what: str) -> PreflightError:
    return PreflightError(
        f"{what} Other work held its devices for {PLACEMENT_DEADLINE_S:g} s. Wait for it, or end it."
    )
