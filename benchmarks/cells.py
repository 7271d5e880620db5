"""What `grid.py` runs: one cell for each run of the system, the most important first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SCALES = {
    "full": {"pools_s": 150.0, "latency_s": 0.5, "learning_s": 300.0},
    "smoke": {"pools_s": 10.0, "latency_s": 0.05, "learning_s": 10.0},
}
"""Training seconds of a cell, and the mean latency of a page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One run."""

    name: str
    command: list[str]
    """Words after the interpreter; `{run}` is the folder of the run, `{out}` that of the cell."""
    limit_s: float
    weight: int = 1
    """Times `--cores-per-run`."""


def pools(slots: int, what: str, scale: dict[str, float], *more: str) -> Cell:
    """Return one mode of the comparison of pools: `eta-N`, `sync`, or another name with options."""
    options = {"sync": ["--etas"]}.get(what, ["--etas", what.removeprefix("eta-"), "--no-sync"])
    if more:
        options = list(more)
    return Cell(
        name=f"pools-{slots}-{what}",
        command=[
            *(str(HERE / "pools" / "measure.py"), "--slots", str(slots), *options),
            *("--seconds", f"{scale['pools_s']:g}", "--latency", f"{scale['latency_s']:g}"),
            *("--keep", "{run}", "--out", "{out}/pools.json"),
        ],
        limit_s=scale["pools_s"] + 240,
        weight=2 if slots > 16 else 1,  # 32 slots on two cores measure the cores
    )


def learning(name: str, seconds: float, seed: int, *settings: str, is_ahead: bool = False) -> Cell:
    """Return one run of the laptop's task."""
    ahead = str(HERE / "learning" / "ahead.py")
    return Cell(
        name=f"learning-{name}-seed{seed}",
        command=[
            *([ahead] if is_ahead else ["-m", "webrl", "train"]),
            *("--config", "laptop", "run_dir={run}", f"seed={seed}", f"time_limit_s={seconds:g}"),
            *("test_rollout.interval_s=20", "test_rollout.num_final_seeds=256"),
            *("logging.tracker=none", *(QUICK if seconds < 60 else ()), *settings),
        ],
        limit_s=seconds + 240,
    )


QUICK = ("policy.init.num_updates=2", "test_rollout.enabled=false")
"""Settings of the smoke scale: whether cells live side by side needs no policy that knows anything."""
SYNC = (
    "allocation_mode=embedded[rollout]:d1|fsdp[actor]:d1",
    "cluster.n_inference_servers=0",
    "rollout.max_head_offpolicyness=0",
)
COUPLED = ("actor.use_decoupled_loss=false", "actor.recompute_logprob=false")


def cells(scale: str) -> list[Cell]:
    """Return every cell, the most important first."""
    sizes, learning_s = SCALES[scale], SCALES[scale]["learning_s"]
    found = [pools(16, f"eta-{eta}", sizes) for eta in (2, 0, 4)]
    found.insert(1, pools(16, "sync", sizes))
    for seed in range(3):
        found.append(learning("async", learning_s, seed))
        found.append(learning("sync", learning_s, seed, *SYNC))
    for name in ("respawn", "by_value", "coupled"):
        options = ("--etas", "2", "--no-sync", "--without", name)
        found.append(pools(16, f"without-{name}", sizes, *options))
    uniform = ("--uniform", "9")
    found += [
        pools(16, "uniform-eta-2", sizes, "--etas", "2", "--no-sync", *uniform),
        pools(16, "uniform-sync", sizes, "--etas", *uniform),
    ]
    found += [pools(slots, what, sizes) for slots in (32, 8) for what in ("eta-2", "sync")]
    found += [pools(slots, f"eta-{e}", sizes) for slots in (16, 32, 8) for e in (1, 8)]
    found += [pools(slots, f"eta-{e}", sizes) for slots in (32, 8) for e in (0, 4)]
    found += losses(learning_s, range(3))
    for seed in range(3):
        slow = "env.page_latency_s=0.5"
        found.append(learning("slow-page-async", learning_s, seed, slow))
        found.append(learning("slow-page-sync", learning_s, seed, slow, *SYNC))
    return found + losses(learning_s, range(3, 6))


def losses(seconds: float, seeds: range) -> list[Cell]:
    """Return both losses at each eta, every batch as far behind as eta allows."""
    return [
        learning(
            f"{loss}-eta-{eta}",
            seconds,
            seed,
            f"rollout.max_head_offpolicyness={eta}",
            *settings,
            is_ahead=True,
        )
        for seed in seeds
        for eta in (8, 2, 0)
        for loss, settings in (("decoupled", ()), ("coupled", COUPLED))
    ]
