"""What a person sees while a run goes on: a live panel on a terminal, one line a step elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

logger = logging.getLogger(__name__)

SILENT_S = 10.0
"""Nobody has to wonder for longer what a run waits for."""

BAR_WIDTH = 24
"""Characters of an idle-share bar."""

SPARK = "▁▂▃▄▅▆▇█"
"""Levels of the success curve."""

CURVE_POINTS = 48
"""Latest points of the success curve shown."""


def format_duration(seconds: float) -> str:
    """Return seconds as `m:ss` or `h:mm:ss`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def sparkline(values: list[float]) -> str:
    """Return values in [0, 1] as one character each."""
    top = len(SPARK) - 1
    return "".join(SPARK[min(top, max(0, round(value * top)))] for value in values)


class LiveView:
    """Shows the newest gauges of a run. Use as a context manager.

    Args:
        console: Where to draw; a terminal gets a panel, anything else lines.
        title: Shown on top, usually the run folder.
    """

    def __init__(
        self, console: Console, *, title: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._title = title
        self._clock = clock
        self._started = clock()
        self._gauges: dict[str, float] = {}
        self._success: list[float] = []
        self._evaluation: list[tuple[int, str]] = []
        self._note = self._shown = "starting"
        self._noted_s = self._said_s = self._started
        self._is_unread = False
        self._live: Live | None = None

    def __enter__(self) -> LiveView:
        """Start drawing."""
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._render, console=self._console, refresh_per_second=2
            )
            self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop drawing and leave the last picture on screen."""
        if self._live is not None:
            with contextlib.suppress(OSError, ValueError, SystemExit):
                self._live.__exit__(kind, error, trace)
            self._live = None

    def note(self, text: str) -> None:
        """Say what the run is doing."""
        self._note, self._noted_s = text, self._clock()
        self._say(text)

    async def keep_telling(
        self, describe: Callable[[], str | None], *, interval_s: float = 1.0
    ) -> None:
        """Say again what goes on whenever nothing was said for a while; until cancelled.

        Args:
            describe: Answers what is waited for at the moment; None stands for the last note.
            interval_s: Between two looks.
        """
        while True:
            await asyncio.sleep(interval_s)
            if self._clock() - self._said_s >= SILENT_S:
                seconds = self._clock() - self._noted_s
                self._say(f"{describe() or f'still {self._note}'} ({seconds:.0f} s)")

    def gauge(self, values: Mapping[str, float]) -> None:
        """Update gauges between steps."""
        self._gauges.update(values)

    def step(self, metrics: Mapping[str, float]) -> None:
        """Show the metrics of a finished training step."""
        self._gauges.update(metrics)
        if "rollout/success_share" in metrics:
            self._success.append(metrics["rollout/success_share"])
        self._note, self._noted_s = "training", self._clock()
        self._say(self._line(), shown="training")

    def evaluated(self, version: int, mean: float | None, low: float, high: float) -> None:
        """Show a finished evaluation with its 95 % interval; the mean is None without an episode."""
        text = "unknown" if mean is None else f"{mean:.3f} [{low:.3f}, {high:.3f}]"
        self._evaluation.append((version, text))
        self._say(f"test rollout of version {version}: greedy success {text}", shown=self._shown)

    def _say(self, text: str, *, shown: str | None = None) -> None:
        """Log a line, and print it where there is no panel, which shows `shown` below.

        Whoever read the output may be gone (a closed terminal, `| head`): the run goes on.
        """
        self._said_s = self._clock()
        self._shown = text if shown is None else shown
        logger.info(text)
        if self._live is None and not self._is_unread:
            try:
                elapsed = format_duration(self._said_s - self._started)
                self._console.print(f"[{elapsed}] {text}")
            except (OSError, ValueError, SystemExit):  # rich's own answer to a closed pipe
                self._is_unread = True

    def _line(self) -> str:
        g = self._gauges.get
        return (
            f"version {g('weights/version', 0):.0f}  "
            f"success {g('rollout/success_share', 0):.2f}  "
            f"trained on {g('rollout/trained_total', 0):.0f} of "
            f"{g('rollout/episodes_total', 0):.0f} episodes "
            f"({g('rollout/trained_share', 0):.0%}, {g('rollout/episodes_per_s', 0):.1f}/s run)  "
            f"staleness {g('off_policyness/mean', 0):.2f} (max {g('off_policyness/max', 0):.0f})  "
            f"clip {g('clip/fraction', 0):.3f}  entropy {g('policy/entropy', 0):.2f}  "
            f"window {1e3 * g('publish/window_s', 0):.0f} ms  "
            f"idle slots {g('idle/rollout_share', 0):.0%} trainer {g('idle/actor_share', 0):.0%}"
        )

    def _render(self) -> Panel:
        g = self._gauges.get
        table = Table.grid(padding=(0, 2))
        for _ in range(4):
            table.add_column()
        rows = [
            ("weight version", f"{g('weights/version', 0):.0f}",
             "trained on / run", f"{g('rollout/trained_total', 0):.0f} / {g('rollout/episodes_total', 0):.0f}"),
            ("episodes/s run", f"{g('rollout/episodes_per_s', 0):.1f}",
             "success (train)", f"{g('rollout/success_share', 0):.3f}"),
            ("staleness mean / max", f"{g('off_policyness/mean', 0):.2f} / {g('off_policyness/max', 0):.0f}",
             "queue (episodes)", f"{g('rollout/ready_episodes', 0):.0f}"),
            ("running / slots", f"{g('rollout/in_flight_episodes', 0):.0f} / {g('rollout/slots', 0):.0f}",
             "bound by", self._binding()),
            ("clip / entropy", f"{g('clip/fraction', 0):.3f} / {g('policy/entropy', 0):.2f}",
             "update window", f"{1e3 * g('publish/window_s', 0):.0f} ms"),
            ("faults / dropped stale", f"{g('rollout/faulted_episodes', 0):.0f} / "
             f"{g('rollout/expired_episodes', 0):.0f}",
             "zero-variance groups", f"{g('rollout/zero_variance_share', 0):.0%}"),
        ]  # fmt: skip
        if "site/seen" in self._gauges:
            sites = (
                f"{g('site/closed', 0):.0f} / {g('site/seen', 0):.0f}",
                f"{g('site/skipped_groups', 0):.0f}",
            )
            rows.append(("sites closed / seen", sites[0], "groups passed over", sites[1]))
        for row in rows:
            table.add_row(Text(row[0], "dim"), row[1], Text(row[2], "dim"), row[3])
        body = Table.grid()
        body.add_row(table)
        body.add_row(self._bar("rollout slots idle", g("idle/rollout_share", 0.0)))
        body.add_row(self._bar("trainer idle", g("idle/actor_share", 0.0)))
        if self._success:
            body.add_row(
                Text.assemble(
                    ("success  ", "dim"), (sparkline(self._success[-CURVE_POINTS:]), "green")
                )
            )
        for version, text in self._evaluation[-3:]:
            body.add_row(Text(f"test rollout v{version}: {text}", "cyan"))
        elapsed = format_duration(self._clock() - self._started)
        return Panel(body, title=f"webrl  {self._title}", subtitle=f"{elapsed}  {self._shown}")

    def _binding(self) -> str:
        return "slots" if self._gauges.get("staleness/bound_binds", 0.0) < 0.5 else "staleness"

    @staticmethod
    def _bar(label: str, share: float) -> Text:
        filled = round(BAR_WIDTH * min(1.0, max(0.0, share)))
        return Text.assemble(
            (f"{label:<20}", "dim"),
            ("█" * filled, "yellow"),
            ("░" * (BAR_WIDTH - filled), "dim"),
            f" {share:.0%}",
        )
