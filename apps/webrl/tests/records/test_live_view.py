"""What a person sees: lines where there is no terminal, a panel on one."""

from __future__ import annotations

import asyncio
import io
import logging

import pytest
from rich.console import Console
from webrl.records.live_view import LiveView, format_duration, sparkline

METRICS = {
    "weights/version": 3.0,
    "rollout/success_share": 0.5,
    "rollout/episodes_per_s": 27.25,
    "rollout/trained_total": 96.0,
    "rollout/episodes_total": 400.0,
    "rollout/trained_share": 0.24,
    "off_policyness/mean": 0.25,
    "off_policyness/max": 1.0,
    "publish/window_s": 0.095,
    "idle/rollout_share": 0.03,
    "idle/actor_share": 0.9,
}


def test_without_a_terminal_each_step_is_one_line() -> None:
    out = io.StringIO()
    with LiveView(Console(file=out, width=200), title="runs/x", clock=lambda: 65.0) as view:
        view.note("training")
        view.step(METRICS)
        view.evaluated(3, 0.9, 0.85, 0.94)
    lines = out.getvalue().splitlines()
    assert lines[0] == "[0:00] training"
    assert "version 3" in lines[1]
    assert "trained on 96 of 400 episodes (24%, 27.2/s run)" in lines[1]
    assert "staleness 0.25 (max 1)" in lines[1]
    assert "window 95 ms" in lines[1]
    assert "greedy success 0.900 [0.850, 0.940]" in lines[2]


def test_on_a_terminal_the_panel_holds_every_figure() -> None:
    out = io.StringIO()
    console = Console(file=out, width=110, force_terminal=True, color_system=None)
    with LiveView(console, title="runs/x", clock=lambda: 0.0) as view:
        view.step(METRICS)
        view.evaluated(3, 0.9, 0.85, 0.94)
    text = out.getvalue()
    for shown in ("episodes/s", "27.2", "trainer idle", "90%", "test rollout v3: 0.900"):
        assert shown in text


def test_what_is_not_known_is_not_drawn_as_zero() -> None:
    out = io.StringIO()
    console = Console(file=out, width=110, force_terminal=True, color_system=None)
    with LiveView(console, title="runs/x", clock=lambda: 0.0) as view:
        view.step(METRICS)
        view.step({"weights/version": 4.0})
        view.evaluated(4, None, 0.0, 1.0)
    text = out.getvalue()
    assert "test rollout v4: unknown" in text
    assert "0.500" in text
    assert "▁" not in text


def test_durations_and_curves_are_short() -> None:
    assert [format_duration(s) for s in (5, 65, 3725)] == ["0:05", "1:05", "1:02:05"]
    assert sparkline([0.0, 0.5, 1.0, 2.0]) == "▁▅██"


class ClosedPipe(io.StringIO):
    """An output whose reader is gone, such as `| head`."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_run_goes_on_when_nobody_reads_its_output(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "webrl"),
        LiveView(Console(file=ClosedPipe()), title="runs/x") as view,
    ):
        view.note("100 % of it")
        view.step(METRICS)
    assert caplog.messages[0] == "100 % of it"
    assert "version 3" in caplog.messages[1]


def test_what_a_run_waits_for_is_said_again_and_again() -> None:
    out = io.StringIO()
    now_s = 0.0
    waiting: list[str] = []

    async def main(view: LiveView) -> None:
        nonlocal now_s
        telling = asyncio.get_running_loop().create_task(
            view.keep_telling(lambda: waiting[0] if waiting else None, interval_s=0.0)
        )
        view.note("starting servers")
        for now_s in (5.0, 11.0, 15.0, 22.0):
            if now_s > 12:
                waiting[:] = ["waiting for a batch"]
            for _ in range(5):
                await asyncio.sleep(0)
        telling.cancel()

    with LiveView(Console(file=out, width=200), title="runs/x", clock=lambda: now_s) as view:
        asyncio.run(main(view))
    assert out.getvalue().splitlines() == [
        "[0:00] starting servers",
        "[0:11] still starting servers (11 s)",
        "[0:22] waiting for a batch (22 s)",
    ]
