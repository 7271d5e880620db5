"""Groups, the ready queue and their policies, without any loop."""

from __future__ import annotations

import pytest
from awrl_rollout import (
    ControllerConfig,
    EpisodeRecord,
    EpisodeRequest,
    Fault,
    FaultKind,
    Outcome,
    RetryPolicy,
)
from awrl_rollout.controller.batches import ReadyQueue
from awrl_rollout.controller.groups import CompleteGroup, GroupTracker
from awrl_rollout.controller.scheduler import check_group
from awrl_rollout.testing import make_group

LOST = Fault(kind=FaultKind.BROWSER_LOST, boundary="test", error_type="", message="")


def record(episode_id: str, outcome: Outcome, version: int = 0) -> EpisodeRecord:
    return EpisodeRecord(
        episode_id=episode_id,
        group_id=episode_id.split("/")[0],
        outcome=outcome,
        fault=LOST if outcome is Outcome.FAULT else None,
        oldest_version=version,
    )


def ended(tracker: GroupTracker, index: int, outcome: Outcome) -> CompleteGroup | None:
    request = make_group("g", 3)[index]
    following = tracker.ended(request, record(request.episode_id, outcome))
    return following if isinstance(following, CompleteGroup) else None


def test_records_are_keyed_by_member_and_not_by_arrival() -> None:
    tracker = GroupTracker(2)
    tracker.open(make_group("g", 3))
    assert ended(tracker, 2, Outcome.SUCCESS) is None
    assert ended(tracker, 0, Outcome.FAILURE) is None
    complete = ended(tracker, 1, Outcome.SUCCESS)
    assert complete is not None
    assert [item.episode_id for item in complete.records] == ["g/0", "g/1", "g/2"]
    assert tracker.num_open == 0


def test_a_refill_keeps_its_place_and_goes_first_in_line() -> None:
    tracker = GroupTracker(2)
    tracker.open(make_group("g", 3))
    tracker.open(make_group("h", 1))
    first = tracker.pending.popleft()
    refill = tracker.ended(first, record("g/0", Outcome.FAULT))
    assert isinstance(refill, EpisodeRequest)
    assert (refill.episode_id, refill.member, refill.attempt) == ("g/0~1", 0, 1)
    assert tracker.pending.popleft() == refill
    again = tracker.ended(refill, record("g/0~1", Outcome.FAULT))
    assert isinstance(again, EpisodeRequest)
    assert again.episode_id == "g/0~2"
    assert tracker.ended(again, record("g/0~2", Outcome.FAULT)) is None


def test_a_member_whose_judge_gave_no_verdict_is_left_out_and_not_run_again() -> None:
    tracker = GroupTracker(2)
    tracker.open(make_group("g", 2))
    first, second = make_group("g", 2)
    fault = Fault(kind=FaultKind.JUDGE_ERROR, boundary="judge", error_type="", message="")
    lost = EpisodeRecord(
        episode_id="g/0", group_id="g", outcome=Outcome.FAULT, fault=fault, oldest_version=0
    )
    assert tracker.ended(first, lost) is None
    complete = tracker.ended(second, record("g/1", Outcome.SUCCESS))
    assert isinstance(complete, CompleteGroup)
    assert [item.episode_id for item in complete.records] == ["g/1"]


def test_filtered_members_are_not_refilled() -> None:
    tracker = GroupTracker(2)
    tracker.open(make_group("g", 3))
    ended(tracker, 0, Outcome.REJECTED)
    ended(tracker, 1, Outcome.REJECTED)
    complete = ended(tracker, 2, Outcome.SUCCESS)
    assert complete is not None
    assert (len(complete.records), complete.num_lost) == (1, 0)


def group(name: str, version: int, sequence: int, size: int = 2) -> CompleteGroup:
    requests = tuple(make_group(name, size))
    records = tuple(record(item.episode_id, Outcome.SUCCESS, version) for item in requests)
    return CompleteGroup(
        group_id=name,
        sequence=sequence,
        requests=requests,
        records=records,
        num_lost=0,
    )


def test_the_ready_queue_gives_the_oldest_version_first_then_the_first_admitted() -> None:
    queue = ReadyQueue()
    for item in (group("c", 2, 0), group("b", 1, 5), group("a", 1, 3)):
        queue.add(item)
    assert [item.group_id for item in queue.take(3)] == ["a", "b"]
    assert (len(queue), queue.num_episodes) == (1, 2)
    assert [item.group_id for item in queue.take(99)] == ["c"]
    assert queue.take(1) == []


@pytest.mark.parametrize(
    "requests",
    [
        [],
        [*make_group("a", 1), *make_group("b", 1)],
        [*make_group("a", 1), *make_group("a", 1)],
    ],
)
def test_a_malformed_group_is_refused(requests: list[object]) -> None:
    with pytest.raises(ValueError, match="a group must hold requests of one group_id"):
        check_group(requests)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ControllerConfig(max_refills=-1), "max_refills must be at least 0, got -1"),
        (lambda: ControllerConfig(min_members=0), "min_members must be at least 1, got 0"),
        (lambda: ControllerConfig(poll_interval_s=0.0), "poll_interval_s must be above 0"),
        (lambda: ControllerConfig(max_fault_share=1.5), "max_fault_share must be between 0 and 1"),
        (lambda: RetryPolicy(max_retries=-1), "max_retries must be at least 0, got -1"),
        (lambda: RetryPolicy(jitter=2.0), r"jitter must be between 0 and 1, got 2\.0"),
    ],
)
def test_a_number_out_of_range_is_refused_by_name(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()
