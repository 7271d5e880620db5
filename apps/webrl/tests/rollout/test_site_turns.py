"""Turns on a site: so many at once, openings so far apart, nobody else held up, none lost."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from awrl_rollout import VirtualClock
from webrl.rollout.site_turns import SiteTurns


class Visits:
    """Visits to sites, as a site would log them."""

    def __init__(self, turns: SiteTurns) -> None:
        self.turns = turns
        self.opened: list[tuple[str, float]] = []
        self.inside = 0
        self.most = 0

    async def visit(self, site: str, seconds: float) -> None:
        async with self.turns.turn(site):
            self.opened.append((site, asyncio.get_running_loop().time()))
            self.inside += 1
            self.most = max(self.most, self.inside)
            await asyncio.sleep(seconds)
            self.inside -= 1


def run(visits: Visits, *wanted: tuple[str, float]) -> list[tuple[str, float]]:
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for site, seconds in wanted:
                group.create_task(visits.visit(site, seconds))

    VirtualClock().run(main())
    start_s = visits.opened[0][1]
    return [(site, round(at_s - start_s, 6)) for site, at_s in visits.opened]


def test_so_many_are_on_a_site_at_once_and_the_others_follow_in_order() -> None:
    visits = Visits(SiteTurns(most_at_once=2, interval_s=0.0))
    opened = run(visits, *[("a.example", 10.0)] * 5)
    assert visits.most == 2
    assert [at_s for _, at_s in opened] == [0, 0, 10, 10, 20]


def test_openings_of_a_site_are_apart_and_those_of_others_are_not_held_up() -> None:
    visits = Visits(SiteTurns(most_at_once=None, interval_s=3.0))
    opened = run(visits, *[("a.example", 0.5)] * 3, ("b.example", 0.5), ("", 0.5), ("", 0.5))
    assert [at_s for site, at_s in opened if site == "a.example"] == [0, 3, 6]
    assert [at_s for site, at_s in opened if site != "a.example"] == [0, 0, 0]


@pytest.mark.parametrize("moment", [0.5, 5.0, 12.0])
def test_a_cancelled_visit_gives_its_place_back_wherever_it_is(moment: float) -> None:
    visits = Visits(SiteTurns(most_at_once=1, interval_s=4.0))

    async def main() -> list[float]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(visits.visit("a.example", 10.0)) for _ in range(3)]
            await asyncio.sleep(moment)
            for task in tasks[:2]:
                task.cancel()
        async with asyncio.timeout(60):
            await visits.visit("a.example", 1.0)
        return [at_s for _, at_s in visits.opened]

    times = VirtualClock().run(main())
    assert all(later - earlier >= 4.0 for earlier, later in itertools.pairwise(times))
    assert times[-1] < moment + 30.0


def test_a_site_that_nobody_visits_is_forgotten() -> None:
    turns = SiteTurns(most_at_once=3, interval_s=0.0)
    run(Visits(turns), *[(f"site{number}.example", 1.0) for number in range(50)])
    assert turns.num_sites == 0
