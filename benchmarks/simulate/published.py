"""The published 64-GPU run, simulated: fitted to one of its figures, the others predicted.

    python benchmarks/simulate/published.py --out benchmarks/baselines/published.json

Fitted: 11 minutes a step at 48 servers + 16 ranks, by one factor on latencies, four times: on all of
them, on the servers' alone, on the pages' alone, and on the servers' when each works at a fixed rate
however many requests it has (the last of `FITS`). Assumed: 5.1 steps of a success, 12.5 of a failure,
at most 30; 3,100 episodes an hour, that is 568 a step of which 128 are trained on, which sets how
alike siblings end; a training row's cost from operations (see `TrainerModel`). Predicted: the first
step's rollout at 24 + 40 and 40 + 24, by a policy of the published success before training; training
at 40 ranks, the synchronous system on the same 64 GPUs, staleness.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from webrl.config import WebRLConfig, load_config
from webrl.simulate import (
    Assumptions,
    ModeFigures,
    SimulationModel,
    fit,
    resolve_assumptions,
    simulate_asynchronous,
    simulate_synchronous,
    with_settings,
)

STEP_S = 660.0
EPISODES_A_STEP = 568
"""3,100 episodes an hour times 11 minutes."""
KEPT = 128 / EPISODES_A_STEP
"""Share of the episodes that is trained on."""
GROUP = 8
PAGES = ["episode.step_s", "episode.reset_s"]
SERVERS = ["server.token_s"]
FITS = {
    "all latencies": ([*PAGES, *SERVERS], []),
    "servers alone": (SERVERS, []),
    "pages alone": (PAGES, []),
    "servers alone, each of a fixed rate": (
        SERVERS,
        ["server.crowding=1", "server.is_sticky=false"],
    ),
}
"""What the factor scales, and what is set before."""
FIRST_SUCCESS = 0.262
"""Published success of the policy before training: the first step is its."""
ROUNDS = (128, EPISODES_A_STEP, 1280)
"""Episodes of one synchronous round: the batch, as many as an asynchronous step runs, all slots."""
BATCH, SPLIT_BATCH = 128, 120
"""Neither 40 nor 24 ranks divide 128 episodes: these splits run 120, and their times are scaled."""


def alike(model: SimulationModel) -> SimulationModel:
    """Return a model whose siblings end so alike that 128 of 568 episodes carry a gradient."""
    low, high = 0.001, 10.0
    for _ in range(40):
        middle = (low * high) ** 0.5
        if equal_endings(model.episode.success_share, middle) > 1.0 - KEPT:
            low = middle
        else:
            high = middle
    return with_settings(model, [f"episode.success_concentration={low:.3g}"])


def equal_endings(share: float, weight: float) -> float:
    """Return how likely all members of a group end alike: a Beta-binomial's two outer terms."""
    good = bad = 1.0
    for index in range(GROUP):
        good *= (share * weight + index) / (weight + index)
        bad *= ((1.0 - share) * weight + index) / (weight + index)
    return good + bad


def predict(assumptions: Assumptions, num_steps: int) -> dict[str, Any]:
    """Return the predictions of one fitted model."""
    config = load_config("webgym_48_16", [f"total_steps={num_steps}"]).config
    own = simulate_asynchronous(config, assumptions.model).figures()
    other = simulate_asynchronous(split(24, num_steps), assumptions.model).figures()
    ratios: dict[str, float] = {}
    for num_episodes in ROUNDS:
        model = with_settings(
            assumptions.model, [f"synchronous.round_episodes={num_episodes // 8 * 8}"]
        )
        synchronous = simulate_synchronous(config, model).figures()
        ratios[str(num_episodes)] = own.episodes_per_h / synchronous.episodes_per_h
    episode = assumptions.model.episode
    return {
        "step_s": episode.step_s,
        "token_s": assumptions.model.server.token_s,
        "own": short(own),
        "split_24_40": short(other, BATCH / SPLIT_BATCH),
        "first_rollout_min": {
            f"{servers}_{64 - servers}": [
                first_rollout_min(model, servers) for model in first_models(assumptions.model)
            ]
            for servers in (24, 40)
        },
        "asynchronous_over_synchronous_by_round": ratios,
    }


def split(num_servers: int, num_steps: int) -> WebRLConfig:
    """Return the configuration of another split of the 64 GPUs."""
    settings = [
        f"total_steps={num_steps}",
        f"allocation_mode=sglang[rollout]:d{num_servers}+fsdp[actor]:d{64 - num_servers}",
        f"cluster.n_inference_servers={num_servers}",
        f"rollout.consumer_batch_size={SPLIT_BATCH}",
    ]
    return load_config("webgym_48_16", settings).config


def first_models(model: SimulationModel) -> tuple[SimulationModel, SimulationModel]:
    """Return the policy before training twice: how many of its groups carry a gradient is not published.

    First with the share of later steps, then with siblings that end as alike as later.
    """
    first = with_settings(model, [f"episode.success_share={FIRST_SUCCESS}"])
    return alike(first), first


def first_rollout_min(model: SimulationModel, num_servers: int) -> float:
    """Return the minutes until the first batch is there, from a start with nothing running."""
    first = simulate_asynchronous(split(num_servers, 1), model).steps[0]
    return (first.collected_s - first.started_s) / 60.0 * BATCH / SPLIT_BATCH


def short(figures: ModeFigures, scale: float = 1.0) -> dict[str, Any]:
    """Return the figures that the published run tells something about, times scaled."""
    return {
        "step_min": scale * figures.step_s / 60.0,
        "rollout_min": scale * figures.rollout_s / 60.0,
        "train_min": scale * figures.train_s / 60.0,
        "episodes_per_h": figures.episodes_per_h,
        "mean_off_policyness": figures.mean_off_policyness,
        "running_episodes": figures.running_episodes,
        "requests_per_server": figures.requests_per_server,
        "trainer_idle": figures.trainer_idle,
        "wasted_share": figures.wasted_share,
        "bounds": figures.bounds,
    }


def main() -> None:
    """Fit, predict and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    config = load_config("webgym_48_16", [f"total_steps={arguments.steps}"]).config
    start = resolve_assumptions(config, [], None)
    start = replace(start, model=alike(start.model))
    results: dict[str, Any] = {
        "concentration": start.model.episode.success_concentration,
        "steps": arguments.steps,
        "fits": {},
    }
    for name, (keys, settings) in FITS.items():
        chosen = replace(start, model=with_settings(start.model, settings))
        fitted, factor = fit(
            config, chosen, keys=keys, target=STEP_S, figure=lambda figures: figures.step_s
        )
        results["fits"][name] = {"factor": factor, **predict(fitted, arguments.steps)}
        print(name, json.dumps(results["fits"][name], indent=1), flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
