"""The published 64-GPU run, simulated: fitted to one of its figures, the others predicted.

    python benchmarks/simulate/published.py --out benchmarks/baselines/published.json

Fitted: 11 minutes a step at 48 servers + 16 ranks, by one factor on latencies, three times: on all of
them, on the servers' alone, on the pages' alone. Assumed: 5.1 steps of a success, 12.5 of a failure,
at most 30; 3,100 episodes an hour, that is 568 a step of which 128 are trained on, which sets how
alike siblings end; a training row's cost from operations (see `TrainerModel`). Predicted: generating
one batch and training on it at 24 + 40, the synchronous system on the same 64 GPUs, staleness.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from webrl.config import load_config
from webrl.simulate import (
    Assumptions,
    ModeFigures,
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
SPLIT = (
    "allocation_mode=sglang[rollout]:d24+fsdp[actor]:d40",
    "cluster.n_inference_servers=24",
    "rollout.consumer_batch_size=120",
)
FITS = {"all latencies": [*PAGES, *SERVERS], "servers alone": SERVERS, "pages alone": PAGES}
ROUNDS = (128, EPISODES_A_STEP, 1280)
"""Episodes of one synchronous round: the batch, as many as an asynchronous step runs, all slots."""
BATCH, SPLIT_BATCH = 128, 120
"""40 ranks do not divide 128 episodes: that split runs 120, and its times are scaled."""


def alike(assumptions: Assumptions) -> Assumptions:
    """Return assumptions whose siblings end so alike that 128 of 568 episodes carry a gradient."""
    low, high = 0.001, 10.0
    for _ in range(40):
        middle = (low * high) ** 0.5
        if equal_endings(assumptions.model.episode.success_share, middle) > 1.0 - KEPT:
            low = middle
        else:
            high = middle
    key = f"episode.success_concentration={low:.3g}"
    return replace(assumptions, model=with_settings(assumptions.model, [key]))


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
    split = load_config("webgym_48_16", [f"total_steps={num_steps}", *SPLIT]).config
    other = simulate_asynchronous(split, assumptions.model).figures()
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
        "asynchronous_over_synchronous_by_round": ratios,
    }


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
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    config = load_config("webgym_48_16", [f"total_steps={arguments.steps}"]).config
    start = alike(resolve_assumptions(config, [], None))
    results: dict[str, Any] = {
        "concentration": start.model.episode.success_concentration,
        "steps": arguments.steps,
        "fits": {},
    }
    for name, keys in FITS.items():
        fitted, factor = fit(
            config, start, keys=keys, target=STEP_S, figure=lambda figures: figures.step_s
        )
        results["fits"][name] = {"factor": factor, **predict(fitted, arguments.steps)}
        print(name, json.dumps(results["fits"][name], indent=1), flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
