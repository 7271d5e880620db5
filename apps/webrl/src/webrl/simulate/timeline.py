"""A picture of who works when: both modes over the same span of virtual time, as one SVG file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from webrl.simulate.figures import Gauge, Recording

_WIDTH, _LEFT, _ROW, _GAP = 960.0, 190.0, 46.0, 14.0
_NUM_STEPS = 8
"""Steps of the first mode that are shown, the last ones of the run."""
_COLOURS = {"train": "#3b6fb6", "window": "#d1495b", "area": "#6aa56a", "queue": "#c79a3a"}


def write_timeline(path: Path, recordings: Sequence[Recording]) -> None:
    """Write the picture.

    Args:
        path: The file; its folder exists.
        recordings: The modes, the first one sets the span.
    """
    path.write_text(timeline(recordings), encoding="utf-8")


def timeline(recordings: Sequence[Recording]) -> str:
    """Return the picture as SVG text."""
    shown = recordings[0].steps[-_NUM_STEPS:]
    span_s = shown[-1].ended_s - shown[0].started_s
    parts: list[str] = []
    top = 30.0
    for recording in recordings:
        parts += _mode(recording, span_s, top)
        top += 4 * _ROW + 5 * _GAP + 16.0
    parts += [_label(_LEFT, top - 8.0, f"{span_s:,.0f} s shown", weight="normal")]
    for index, (name, colour) in enumerate(
        [("update", "train"), ("servers held", "window"), ("work", "area"), ("queue", "queue")]
    ):
        x = _LEFT + 150.0 + 130.0 * index
        parts.append(_rect(x, top - 18.0, 12.0, 12.0, _COLOURS[colour]))
        parts.append(_label(x + 18.0, top - 8.0, name, weight="normal"))
    height = top + 10.0
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {height:.0f}" '
        f'width="{_WIDTH:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _mode(recording: Recording, span_s: float, top: float) -> list[str]:
    end_s = recording.steps[-1].ended_s
    begin_s = max(0.0, end_s - span_s)
    scale = (_WIDTH - _LEFT - 10.0) / span_s

    def x(at_s: float) -> float:
        return _LEFT + scale * (min(max(at_s, begin_s), end_s) - begin_s)

    gauges = [gauge for gauge in recording.gauges if begin_s <= gauge.at_s <= end_s]
    rows: list[tuple[str, Callable[[Gauge], int], str]] = [
        ("requests on servers", lambda gauge: gauge.num_requests, "area"),
        ("episodes running", lambda gauge: gauge.num_episodes, "area"),
        ("episodes waiting", lambda gauge: gauge.num_ready, "queue"),
    ]
    parts = [_label(8.0, top - 8.0, recording.mode, weight="bold")]
    parts += _row_frame("trainer", top)
    for step in recording.steps:
        if step.ended_s < begin_s:
            continue
        for start_s, stop_s, colour in (
            (step.collected_s, step.trained_s, "train"),
            (step.trained_s, step.resumed_s, "window"),
        ):
            width = max(0.6, x(stop_s) - x(start_s))
            parts.append(_rect(x(start_s), top, width, _ROW, _COLOURS[colour]))
    for index, (name, value, colour) in enumerate(rows, 1):
        y = top + index * (_ROW + _GAP)
        most = max([value(gauge) for gauge in gauges], default=0)
        parts += _row_frame(f"{name}, up to {most}" if most else f"{name}: none", y)
        if most:
            points = [(x(g.at_s), y + _ROW * (1.0 - value(g) / most)) for g in gauges]
            parts.append(_area(points, y + _ROW, _COLOURS[colour]))
    return parts


def _row_frame(name: str, top: float) -> list[str]:
    return [
        _label(8.0, top + _ROW / 2 + 4.0, name, weight="normal"),
        _rect(_LEFT, top, _WIDTH - _LEFT - 10.0, _ROW, "#f1f1ee"),
    ]


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'
    )


def _area(points: Sequence[tuple[float, float]], floor: float, colour: str) -> str:
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    closed = f"{points[0][0]:.1f},{floor:.1f} {line} {points[-1][0]:.1f},{floor:.1f}"
    return f'<polygon points="{closed}" fill="{colour}" fill-opacity="0.8"/>'


def _label(x: float, y: float, text: str, *, weight: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}">{escape(text)}</text>'
