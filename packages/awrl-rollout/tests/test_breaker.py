"""The circuit breaker over the share of faults."""

from __future__ import annotations

import pytest
from awrl_rollout import Fault, FaultBreaker, FaultKind, StarvedError


def fault(kind: FaultKind = FaultKind.SITE_BLOCKED, message: str = "") -> Fault:
    return Fault(kind=kind, boundary="test", error_type="", message=message)


def test_a_few_faults_at_the_start_do_not_stop_a_run() -> None:
    breaker = FaultBreaker(max_share=0.5, window=4)
    for _ in range(3):
        breaker.note(fault())
    breaker.check()
    assert not breaker.is_open


def test_a_share_above_the_limit_over_a_full_window_stops_it_and_names_the_kinds() -> None:
    breaker = FaultBreaker(max_share=0.5, window=4)
    for item in (fault(), None, fault(), fault(FaultKind.TIMEOUT)):
        breaker.note(item)
    with pytest.raises(StarvedError, match=r"got 0\.75 \(site_blocked 2, timeout 1\)"):
        breaker.check()
    for _ in range(9):
        breaker.note(None)
    assert breaker.is_open


def test_old_faults_leave_the_window() -> None:
    breaker = FaultBreaker(max_share=0.5, window=4)
    for item in (fault(), fault(), None, None, None, fault(), None, fault()):
        breaker.note(item)
    breaker.check()


def test_cancelled_episodes_and_dead_workers_are_not_counted() -> None:
    breaker = FaultBreaker(max_share=0.0, window=1)
    breaker.note(fault(FaultKind.WORKER_LOST))
    breaker.note(fault(FaultKind.CANCELLED))
    breaker.check()


def test_it_can_be_switched_off() -> None:
    breaker = FaultBreaker(max_share=None, window=1)
    breaker.note(fault())
    breaker.check()


def test_the_last_message_of_each_kind_is_told_shortened_to_a_line() -> None:
    breaker = FaultBreaker(max_share=0.5, window=3)
    breaker.note(fault(FaultKind.TIMEOUT, "x.org did not answer"))
    breaker.note(fault(FaultKind.PAGE_ERROR, "an earlier one"))
    breaker.note(fault(FaultKind.PAGE_ERROR, f"script threw: a is not b {'.' * 999}\n  at line 3"))
    with pytest.raises(StarvedError) as caught:
        breaker.check()
    _, first, second = str(caught.value).splitlines()
    assert first.startswith("  the last page_error: script threw: a is not b ..")
    assert len(first) < 450
    assert second == "  the last timeout: x.org did not answer"
