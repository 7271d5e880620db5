"""Both simulated loops against closed forms, and against plain asyncio step by step."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from awrl_rollout import EpisodeContext, EpisodeRequest, EpisodeResult, VirtualClock
from webrl.config import WebRLConfig, load_config
from webrl.errors import RunFailedError
from webrl.simulate import (
    DeviceLayout,
    Recording,
    SimulationModel,
    best_point,
    fit,
    resolve_assumptions,
    simulate_asynchronous,
    simulate_synchronous,
    sweep,
    with_settings,
)
from webrl.simulate import pools as pools_module
from webrl.simulate.plans import ModelPlans
from webrl.simulate.simulation import Simulation
from webrl.simulate.workflow import SimulatedEpisodes

PLAIN = (
    "server.crowding=0",
    "server.prefill_tokens=0",
    "server.max_running=100000",
    "publish.window_s=0",
    "session.dispatch_s=0",
    "trainer.row_s=0",
    "trainer.fixed_s=0",
)
"""Nothing that couples episodes to each other or costs time besides them."""


def config(*overrides: str) -> WebRLConfig:
    base = ["total_steps=12", "env.num_workers=2", "env.slots_per_worker=16"]
    base += ["rollout.max_concurrent_rollouts=32", "rollout.consumer_batch_size=32"]
    return load_config("webgym_48_16", [*base, *overrides]).config


def model(*settings: str) -> SimulationModel:
    return with_settings(SimulationModel(), [*PLAIN, *settings])


def lengths(config: WebRLConfig, model: SimulationModel, num_groups: int) -> list[list[float]]:
    plans = ModelPlans(model.episode, seed=config.seed)
    requests = [
        [
            EpisodeRequest(episode_id=f"{group}/{member}", group_id=str(group), member=member)
            for member in range(config.gconfig.n_samples)
        ]
        for group in range(num_groups)
    ]
    return [
        [
            plan.reset_s + sum(plan.step_s) + model.server.token_s * sum(plan.tokens)
            for plan in map(plans.plan, group)
        ]
        for group in requests
    ]


class StepByStep(SimulatedEpisodes):
    """The same episodes with one asyncio timer for each wait: what the event line must equal."""

    plans: ModelPlans
    token_s: float

    async def __call__(self, request: EpisodeRequest, context: EpisodeContext) -> EpisodeResult:
        del context
        plan = self.plans.plan(request)
        await asyncio.sleep(plan.reset_s)
        oldest = newest = self._servers[0].version
        for tokens, step_s in zip(plan.tokens, plan.step_s, strict=True):
            await asyncio.sleep(tokens * self.token_s)
            newest = self._servers[0].version
            await asyncio.sleep(step_s)
        return EpisodeResult(
            is_success=plan.is_success,
            payload=plan,
            reward=float(plan.is_success),
            oldest_version=oldest,
            newest_version=newest,
        )


def step_by_step(config: WebRLConfig, model: SimulationModel) -> Recording:
    clock = VirtualClock()
    simulation = Simulation(config, model, DeviceLayout.of(config), None, mode="asynchronous")
    workflow = StepByStep(simulation.line, simulation.servers, simulation.plans)
    workflow.plans = ModelPlans(model.episode, seed=config.seed)
    workflow.token_s = model.server.token_s
    simulation.workflow = workflow
    clock.run(pools_module._asynchronous(simulation, clock))  # pyright: ignore[reportPrivateUsage]
    return simulation.recording


def test_events_ahead_of_time_change_nothing() -> None:
    chosen, costs = config("rollout.max_head_offpolicyness=1"), model("trainer.fixed_s=40")
    ahead, plain = simulate_asynchronous(chosen, costs), step_by_step(chosen, costs)
    assert [step.ended_s for step in ahead.steps] == pytest.approx(
        [step.ended_s for step in plain.steps], abs=0.1
    )
    assert ahead.off_policyness == plain.off_policyness
    assert ahead.steps[-1].num_ended == plain.steps[-1].num_ended


def test_a_pool_that_no_bound_stops_works_at_the_ideal_rate() -> None:
    chosen = config("rollout.max_head_offpolicyness=8", "total_steps=40")
    costs = model()
    figures = simulate_asynchronous(chosen, costs).figures()
    all_lengths = [length for group in lengths(chosen, costs, 400) for length in group]
    ideal = 32 * 3600.0 / (sum(all_lengths) / len(all_lengths))
    assert figures.episodes_per_h == pytest.approx(ideal, rel=0.1)
    assert figures.slots_idle < 0.02


def test_servers_of_a_fixed_rate_work_all_the_time_also_where_episodes_stay_on_theirs() -> None:
    layout = ("allocation_mode=sglang[rollout]:d6+fsdp[actor]:d8", "cluster.n_inference_servers=6")
    wide = config(*layout, "rollout.max_head_offpolicyness=8")
    settings = ("server.crowding=1", "episode.step_s=0", "episode.reset_s=0")
    spread = simulate_asynchronous(wide, model(*settings, "server.is_sticky=false")).figures()
    sticky = simulate_asynchronous(wide, model(*settings)).figures()
    assert spread.servers_idle == pytest.approx(0, abs=1e-3)
    assert sticky.servers_idle == pytest.approx(0, abs=1e-3)
    assert spread.episodes_per_h == pytest.approx(sticky.episodes_per_h, rel=0.1)


def test_a_synchronous_round_takes_as_long_as_its_slowest_episode() -> None:
    chosen = config("total_steps=5")
    costs = model("session.open_s=7", "session.opens_at_once=16")
    recording = simulate_synchronous(chosen, costs)
    groups = lengths(chosen, costs, 20)
    expected = [7.0 + max(max(group) for group in groups[4 * i : 4 * i + 4]) for i in range(5)]
    assert [step.collected_s - step.started_s for step in recording.steps] == pytest.approx(
        expected, abs=0.1
    )


@pytest.mark.parametrize("eta", [0, 1, 3])
def test_no_trained_episode_is_older_than_eta(eta: int) -> None:
    chosen = config(f"rollout.max_head_offpolicyness={eta}")
    recording = simulate_asynchronous(chosen, model("trainer.fixed_s=100"))
    assert max(recording.off_policyness) <= eta
    assert all(gauge.num_episodes <= 32 for gauge in recording.gauges)
    figures = recording.figures()
    assert sum(figures.bounds.values()) == pytest.approx(1.0)
    if eta == 0:
        assert figures.bounds["staleness"] > 0.5


def test_equal_seeds_give_equal_runs_and_others_do_not() -> None:
    one, same, other = (
        simulate_asynchronous(config(f"seed={seed}", "total_steps=5"), model())
        for seed in (1, 1, 2)
    )
    assert one.steps == same.steps
    assert one.steps != other.steps


def test_a_fit_meets_its_target() -> None:
    chosen = config("total_steps=6")
    start = replace(resolve_assumptions(chosen, [], None), model=model())
    keys = ["episode.step_s", "episode.reset_s"]
    fitted, factor = fit(
        chosen, start, keys=keys, target=500.0, figure=lambda figures: figures.step_s
    )
    assert fitted.model.episode.step_s == pytest.approx(6.0 * factor)
    reached = simulate_asynchronous(chosen, fitted.model).figures().step_s
    assert reached == pytest.approx(500.0, rel=0.02)


def test_a_run_that_would_stop_stops_the_simulation() -> None:
    with pytest.raises(RunFailedError, match="share of groups lost to the infra"):
        simulate_asynchronous(config(), model("episode.step_s=1000"))


def test_a_sweep_keeps_all_devices_in_use_and_finds_the_busiest() -> None:
    chosen = load_config(
        "one_node_8gpu", ["rollout.consumer_batch_size=16", "env.num_workers=1"]
    ).config
    assumptions = resolve_assumptions(chosen, [], None)
    points = list(sweep(chosen, assumptions, num_steps=6))
    assert {point.layout.num_servers + point.layout.num_ranks for point in points} == {7}
    assert {point.eta for point in points} == {0, 1, 2, 4}
    best = best_point(points)
    most = max(point.figures.trained_per_h for point in points)
    assert best.figures.trained_per_h >= 0.99 * most
