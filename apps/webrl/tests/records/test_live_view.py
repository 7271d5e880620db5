"""What a person sees: lines where there is no terminal, a panel on one."""

from __future__ import annotations

import io

from rich.console import Console
from webrl.records.live_view import LiveView, format_duration, sparkline

METRICS = {
    "weights/version": 3.0,
    "rollout/success_share": 0.5,
    "rollout/episodes_per_s": 27.25,
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
    assert "27.2 episodes/s" in lines[1]
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
