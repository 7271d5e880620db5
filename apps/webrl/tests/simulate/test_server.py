"""Simulated servers: exact times of shared work, room, pauses; lengths of model episodes."""

from __future__ import annotations

import asyncio

import pytest
from awrl_rollout import EpisodeRequest, VirtualClock
from webrl.simulate.events import EventLine
from webrl.simulate.model import EpisodeModel, ServerModel
from webrl.simulate.plans import ModelPlans, hazard_of_mean
from webrl.simulate.server import SimulatedServer
from webrl.simulate.workflow import pause_s


def end_times(
    model: ServerModel,
    arrivals: list[tuple[float, float]],
    pauses: list[tuple[float, float]] | None = None,
) -> list[float]:
    """Return when each (arrival, tokens) was answered, with the server held in `pauses`."""
    clock, ends = VirtualClock(), [0.0] * len(arrivals)

    async def main() -> None:
        line = EventLine()
        server = SimulatedServer(line, model)

        def arrive(index: int, tokens: float) -> None:
            server.add(tokens, lambda: ends.__setitem__(index, line.now_s))

        for index, (at_s, tokens) in enumerate(arrivals):
            line.at(at_s, lambda index=index, tokens=tokens: arrive(index, tokens))
        for start_s, stop_s in pauses or []:
            await pause_s(line, start_s - clock.time())
            server.pause(clock.time())
            await pause_s(line, stop_s - clock.time())
            server.resume(clock.time(), server.version + 1)
        await pause_s(line, 1e6)

    clock.run(main())
    return ends


def server(**changes: float) -> ServerModel:
    return ServerModel(**{"token_s": 0.1, "crowding": 0.0, "prefill_tokens": 0.0, **changes})  # pyright: ignore[reportArgumentType]


def test_requests_that_share_a_server_slow_each_other() -> None:
    # Alone 10 tokens take 1 s; with crowding 1 two requests run at half the speed each.
    ends = end_times(server(crowding=1.0), [(0.0, 10.0), (0.5, 10.0)])
    assert ends == pytest.approx([1.5, 2.0])


def test_without_crowding_requests_do_not_meet() -> None:
    assert end_times(server(), [(0.0, 10.0), (0.5, 20.0), (0.6, 1.0)]) == pytest.approx(
        [1.0, 2.5, 0.7]
    )


def test_a_full_server_lets_requests_wait_in_line() -> None:
    ends = end_times(server(max_running=1), [(0.0, 10.0), (0.1, 10.0), (0.2, 5.0)])
    assert ends == pytest.approx([1.0, 2.0, 2.5])


def test_a_pause_holds_requests_and_what_was_cut_is_read_again() -> None:
    ends = end_times(server(prefill_tokens=2.0), [(0.0, 10.0), (5.0, 10.0)], [(0.6, 3.6)])
    # 1.2 s of work, 0.6 s done, 3 s held, 0.6 s left and the prompt's 0.2 s again.
    assert ends == pytest.approx([4.4, 6.2])


@pytest.mark.parametrize(("mean", "max_steps"), [(5.1, 30), (12.5, 30), (1.0, 1), (2.0, 4)])
def test_the_hazard_gives_the_mean_number_of_steps(mean: float, max_steps: int) -> None:
    q = hazard_of_mean(mean, max_steps)
    alive = [(1.0 - q) ** step for step in range(max_steps)]
    assert sum(alive) == pytest.approx(mean, rel=1e-6)


def test_drawn_episodes_follow_the_published_mix() -> None:
    model = EpisodeModel(success_share=0.4, success_concentration=2.0)
    plans = [
        ModelPlans(model, seed=1).plan(EpisodeRequest(episode_id=f"{i}/0", group_id=str(i)))
        for i in range(4000)
    ]
    good = [plan.num_steps for plan in plans if plan.is_success]
    bad = [plan.num_steps for plan in plans if not plan.is_success]
    assert len(good) / len(plans) == pytest.approx(0.4, abs=0.03)
    assert sum(good) / len(good) == pytest.approx(5.1, rel=0.05)
    assert sum(bad) / len(bad) == pytest.approx(12.5, rel=0.05)
    assert max(bad) == 30
    waits = [wait for plan in plans for wait in plan.step_s]
    assert sum(waits) / len(waits) == pytest.approx(model.step_s, rel=0.05)


def test_an_event_ahead_of_time_does_not_move_what_the_loop_sees() -> None:
    clock, seen = VirtualClock(), []

    async def main() -> None:
        line = EventLine()
        line.at(1.0, lambda: seen.append(("silent", line.now_s)))
        line.at(3.0, lambda: seen.append(("silent", line.now_s)))
        await pause_s(line, 2.0)
        seen.append(("task", asyncio.get_running_loop().time()))
        await pause_s(line, 2.0)
        seen.append(("task", asyncio.get_running_loop().time()))

    clock.run(main())
    assert [name for name, _ in seen] == ["silent", "task", "silent", "task"]
    assert [at for _, at in seen] == pytest.approx([1.0, 2.0, 3.0, 4.0], abs=1e-3)
