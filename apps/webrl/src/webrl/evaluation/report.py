"""Files that tell of one evaluation: a table, JSON and a picture."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

import msgspec

from webrl.evaluation.breakdown import Share
from webrl.evaluation.statistics import EvaluationResult

MOST_SITES = 20
"""Sites that table and picture name: those with the most episodes."""

_ORDER = {"easy": 0, "medium": 1, "hard": 2}

_STYLE = """
svg { font: 13px system-ui, sans-serif; background: #fff; color: #1f2328; }
text { fill: currentColor; }
.quiet { opacity: 0.65; }
.bar { fill: #2f6fde; }
.range { stroke: currentColor; stroke-width: 1.5; }
.grid { stroke: currentColor; opacity: 0.15; }
@media (prefers-color-scheme: dark) {
  svg { background: #0d1117; color: #e6edf3; }
  .bar { fill: #4c8dff; }
}
"""
_ROW, _LEFT, _WIDTH, _RIGHT = 26, 250, 420, 150
"""Pixels: height of a row, and the widths of labels, bars and figures."""


def write_report(folder: Path, result: EvaluationResult) -> list[Path]:
    """Write `evaluation.json`, `evaluation.md` and `evaluation.svg`; return their paths.

    Raises:
        OSError: The folder can not be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "evaluation.json": json.dumps(msgspec.to_builtins(result), indent=1) + "\n",
        "evaluation.md": table(result),
        "evaluation.svg": picture(result),
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in files]


def parts_of(result: EvaluationResult) -> Iterator[tuple[str, Mapping[str, Share]]]:
    """Yield the parts of an evaluation that are worth a row each: difficulties, then sites."""
    if len(result.by_difficulty) > 1:
        labels = sorted(result.by_difficulty, key=lambda name: (_ORDER.get(name, 3), name))
        yield "difficulty", {label: result.by_difficulty[label] for label in labels}
    if len(result.by_site) > 1:
        largest = sorted(result.by_site.items(), key=lambda entry: -entry[1].num_episodes)
        yield "site", dict(largest[:MOST_SITES])


def table(result: EvaluationResult) -> str:
    """Return the evaluation as Markdown."""
    lines = [
        f"# Version {result.version}",
        "",
        f"{result.describe()}, in {result.duration_s:.0f} s.",
        "",
        "| part | success | 95 % interval | episodes |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {_cell(name)} | {share.mean:.3f} | {share.low:.3f} to {share.high:.3f} "
        f"| {share.num_episodes} |"
        for name, share in _rows(result)
    ]
    if result.pass_at:
        lines += ["", "| k | pass@k |", "|---|---|"]
        lines += [f"| {k} | {value:.3f} |" for k, value in result.pass_at.items()]
    if result.by_lost_site:
        lines += ["", "Ended by their site, and in no share:", ""]
        lines += ["| site | episodes | what most of them met |", "|---|---|---|"]
        lines += [
            f"| {_cell(name)} | {site.num_episodes} | {site.kind}: {_cell(site.message)} |"
            for name, site in result.by_lost_site.items()
        ]
    if result.faults:
        kinds = ", ".join(f"{kind} {count}" for kind, count in result.faults.items())
        lines += ["", f"Faults by kind: {kinds}."]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:120]


def _rows(result: EvaluationResult) -> Iterator[tuple[str, Share]]:
    if result.mean is not None:
        yield (
            "all",
            Share(
                num_episodes=result.num_episodes, mean=result.mean, low=result.low, high=result.high
            ),
        )
    for part, shares in parts_of(result):
        for name, share in shares.items():
            yield f"{part} {name}", share


def picture(result: EvaluationResult) -> str:
    """Return the evaluation as SVG: a bar with its interval for each part, light or dark."""
    rows = list(_rows(result))
    said = textwrap.wrap(result.describe(), 110)
    top = 40 + 18 * len(said)
    bottom = top + _ROW * max(1, len(rows))
    width, height = _LEFT + _WIDTH + _RIGHT, bottom + 28
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{escape(result.describe())}">',
        f"<style>{_STYLE}</style>",
        f'<text x="12" y="24" font-weight="600">Success of version {result.version}</text>',
        *(
            f'<text x="12" y="{44 + 18 * number}" class="quiet">{escape(line)}</text>'
            for number, line in enumerate(said)
        ),
    ]
    for tick in range(0, 101, 25):
        x = _LEFT + _WIDTH * tick / 100
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>')
        parts.append(
            f'<text class="quiet" x="{x}" y="{bottom + 18}" text-anchor="middle">{tick} %</text>'
        )
    for number, (name, share) in enumerate(rows):
        parts += _bar(top + _ROW * number, name, share)
    if not rows:
        parts.append(f'<text x="{_LEFT + 8}" y="{top + 18}">no episode counts</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bar(top: int, name: str, share: Share) -> Iterator[str]:
    middle = top + _ROW // 2
    low, high = _LEFT + _WIDTH * share.low, _LEFT + _WIDTH * share.high
    label = name if len(name) <= 32 else f"{name[:31]}…"
    yield f'<text x="{_LEFT - 10}" y="{middle + 4}" text-anchor="end">{escape(label)}</text>'
    yield (
        f'<rect class="bar" x="{_LEFT}" y="{top + 5}" width="{_WIDTH * share.mean:.1f}" '
        f'height="{_ROW - 10}" rx="2"/>'
    )
    yield (
        f'<path class="range" fill="none" d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 4}v8'
        f'M{high:.1f} {middle - 4}v8"/>'
    )
    yield (
        f'<text x="{_LEFT + _WIDTH + 12}" y="{middle + 4}">{share.mean:.3f}'
        f'<tspan class="quiet"> of {share.num_episodes:,}</tspan></text>'
    )
