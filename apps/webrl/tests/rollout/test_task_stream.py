"""The order of training groups: endless, shuffled by epoch, resumable."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webrl.rollout.task_stream import HELD_OUT_SEEDS, TaskStream
from webrl.rollout.trajectory import EpisodeTask
from webrl.tasks import Task


def make_task(name: str, *, is_seeded: bool = True, difficulty: str | None = None) -> Task:
    return Task(
        suite="s",
        name=name,
        url="/",
        goal="g",
        answer="a",
        start_script="SEED" if is_seeded else None,
        difficulty=difficulty,
    )


def make_stream(
    num_seeds: int = 5, tasks: tuple[str, ...] = ("a", "b"), seed: int = 3
) -> TaskStream:
    return TaskStream(
        [make_task(name) for name in tasks], num_seeds=num_seeds, group_size=2, seed=seed
    )


def items(stream: TaskStream, count: int) -> list[tuple[str, int]]:
    groups = [stream.next_group() for _ in range(count)]
    payloads = [group[0].payload for group in groups]
    return [(p.definition.name, p.seed) for p in payloads if isinstance(p, EpisodeTask)]


def test_every_epoch_visits_every_item_once_in_an_order_of_its_own() -> None:
    stream = make_stream()
    first, second = items(stream, 10), items(stream, 10)
    assert (
        sorted(first) == sorted(second) == [(t, HELD_OUT_SEEDS + s) for t in "ab" for s in range(5)]
    )
    assert first != second


def test_a_task_whose_seed_changes_nothing_comes_once_an_epoch_and_keeps_its_label() -> None:
    tasks = [
        make_task("a"),
        make_task("b", is_seeded=False, difficulty="hard"),
        make_task("c", is_seeded=False, difficulty="easy"),
    ]
    stream = TaskStream(tasks, num_seeds=3, group_size=2, seed=0)
    groups = [stream.next_group() for _ in range(stream.epoch_length)]
    seen = {
        (group[0].payload.definition.name, group[0].payload.seed - HELD_OUT_SEEDS, group[0].label)
        for group in groups
        if isinstance(group[0].payload, EpisodeTask)
    }
    assert len(groups) == 5
    assert seen == {
        ("a", 0, None),
        ("a", 1, None),
        ("a", 2, None),
        ("b", 0, "hard"),
        ("c", 0, "easy"),
    }


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ((2, 3), (0.4, 0.6)),
        ((1, 1.4), (5 / 12, 7 / 12)),
        ((0.7, 1, 0.1), (7 / 18, 10 / 18, 1 / 18)),
    ],
)
@pytest.mark.parametrize("is_seeded", [True, False])
def test_tasks_are_drawn_as_their_weights_say(
    weights: tuple[float, ...], expected: tuple[float, ...], is_seeded: bool
) -> None:
    stream = TaskStream(
        [make_task(f"t{number}", is_seeded=is_seeded) for number in range(len(weights))],
        num_seeds=7,
        group_size=1,
        seed=0,
        weights=weights,
    )
    drawn = Counter(name for name, _ in items(stream, 12_600))
    for number, share in enumerate(expected):
        assert drawn[f"t{number}"] / 12_600 == pytest.approx(share, abs=2e-3)


def test_within_one_epoch_weights_hold_and_what_comes_twice_is_no_part_of_the_order() -> None:
    tasks = [make_task(f"{number}", is_seeded=False) for number in range(1000)]
    stream = TaskStream(tasks, num_seeds=1, group_size=1, seed=0, weights=[1.0] * 500 + [1.4] * 500)
    assert stream.epoch_length == 500 + 700
    drawn = Counter(int(name) for name, _ in items(stream, 1200))
    assert set(drawn) == set(range(1000))
    twice = [number for number, count in drawn.items() if count == 2]
    assert len(twice) == 200
    assert 90 <= sum(number < 750 for number in twice) <= 110


@settings(deadline=None, max_examples=30)
@given(
    weights=st.lists(st.sampled_from([0.1, 0.3, 1.0, 1.4, 2.4, 7.0]), min_size=1, max_size=4),
    num_seeds=st.integers(1, 5),
)
def test_every_group_is_a_function_of_its_index_and_no_task_falls_behind(
    weights: list[float], num_seeds: int
) -> None:
    def stream() -> TaskStream:
        tasks = [make_task(f"t{number}") for number in range(len(weights))]
        return TaskStream(tasks, num_seeds=num_seeds, group_size=1, seed=1, weights=weights)

    first = stream()
    drawn = items(first, 300)
    assert items(stream(), 300) == drawn
    backwards = stream()
    again = [backwards.group(index)[0].payload for index in reversed(range(300))]
    assert [(p.definition.name, p.seed) for p in again if isinstance(p, EpisodeTask)] == drawn[::-1]
    total, slack = sum(weights), first.epoch_length + len(weights)
    for number, weight in enumerate(weights):
        count = sum(name == f"t{number}" for name, _ in drawn)
        assert abs(count - 300 * weight / total) <= slack


def test_the_stream_never_ends() -> None:
    stream = make_stream(num_seeds=3, tasks=("a",))
    assert len(items(stream, 10)) == 10


def test_siblings_share_group_task_and_seed_and_differ_in_member() -> None:
    group = make_stream().next_group()
    assert {request.group_id for request in group} == {"0"}
    assert [request.member for request in group] == [0, 1]
    assert len({request.episode_id for request in group}) == 2
    assert group[0].payload == group[1].payload


def test_training_seeds_never_meet_held_out_ones() -> None:
    assert all(seed >= HELD_OUT_SEEDS for _, seed in items(make_stream(), 30))


def test_a_resumed_stream_hands_out_unfinished_groups_first_and_then_goes_on() -> None:
    stream = make_stream()
    for _ in range(4):
        stream.next_group()
    for group_id in ("0", "2"):
        stream.finish(group_id)
    resumed = make_stream()
    assert resumed.restore(stream.state())
    ids = [resumed.next_group()[0].group_id for _ in range(4)]
    assert ids == ["1", "3", "4", "5"]


def test_a_dropped_group_counts_as_finished() -> None:
    stream = make_stream()
    for _ in range(10):
        stream.next_group()
    for index in range(10):
        stream.finish(str(index))
    state = stream.state()
    assert (state.next_index, state.again) == (10, [])


def test_another_data_set_starts_from_its_beginning() -> None:
    stream = make_stream()
    for _ in range(7):
        stream.next_group()
    other = make_stream(num_seeds=2)
    assert not other.restore(stream.state())
    assert other.next_group()[0].group_id == "0"


def test_a_resume_sees_the_same_groups_as_an_uninterrupted_run() -> None:
    whole = items(make_stream(), 20)
    stream = make_stream()
    begun = items(stream, 8)
    for index in range(8):
        stream.finish(str(index))
    resumed = make_stream()
    assert resumed.restore(stream.state())
    assert begun + items(resumed, 12) == whole
