"""Metric sinks of a run: `metrics.jsonl` always, one tracker by configuration.

Invariants:
    * a line of `metrics.jsonl` is written whole and flushed, so a killed run keeps every step;
    * a run that goes on from a checkpoint forgets the steps after it: they are taken again;
    * a sink that fails, at any call and in any way, never ends training: it is warned about once,
      tried again with every step, and its failures are counted.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from webrl.errors import ConfigError, Problem
from webrl.records.lines import LineFile

logger = logging.getLogger(__name__)

TOTALS = frozenset(
    f"rollout/{name}"
    for name in (
        "completed_episodes",
        "dropped_groups",
        "duplicate_records",
        "episodes_total",
        "expired_episodes",
        "faulted_episodes",
        "refilled_episodes",
        "restored_episodes",
    )
)
"""Figures of the rollout that count from the start of the run."""
PIXEL_TOTALS = frozenset(
    f"num_{name}"
    for name in (
        "puts",
        "dedup_puts",
        "put_bytes",
        "dedup_bytes",
        "gets",
        "memory_hits",
        "disk_hits",
        "misses",
        "refused",
        "expired",
        "lost",
        "disk_errors",
        "restarts",
    )
)
"""Those of the pixel store."""

_EXTRAS = {"wandb": "wandb", "trackio": "trackio"}


def is_total(key: str) -> bool:
    """Return whether a figure counts from the start of the run, so that a resume goes on with it."""
    group, _, name = key.partition("/")
    if group == "pixelstore":
        return name in PIXEL_TOTALS
    return key in TOTALS or (group == "staleness" and name.startswith("wasted_"))


def continued(metrics: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Return the figures of a step with what the parts of a run counted before they were started.

    Args:
        metrics: Of one step; counts begin with the newest start of the run's parts.
        before: Totals at that start.
    """
    return {
        key: value + before.get(key, 0.0) if is_total(key) else value
        for key, value in metrics.items()
    }


class MetricSink(Protocol):
    """Where scalar metrics of a step go."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write the scalars of one step."""
        ...

    def rewind(self, step: int) -> None:
        """Forget every step after this one, where the sink can."""
        ...

    def close(self) -> None:
        """Flush and end."""
        ...


class JsonLinesSink:
    """Appends one JSON object per step to a file.

    Args:
        clock: Seconds since the epoch.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._file = LineFile(path)
        self._clock = clock

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write one line; non-finite values become null, as JSON has none."""
        self._file.append({"step": step, "time_s": self._clock(), **metrics})

    def rewind(self, step: int) -> None:
        """Drop the lines of later steps."""
        self._file.rewind(step)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardSink:
    """Writes TensorBoard event files."""

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = str(log_dir)
        self._open: Any = import_module("torch.utils.tensorboard").SummaryWriter
        self._writer: Any = self._open(self._log_dir)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write one scalar per key."""
        for key, value in metrics.items():
            self._writer.add_scalar(key, value, step)

    def rewind(self, step: int) -> None:
        """Hide later steps, which TensorBoard calls purging."""
        self._writer.close()
        self._writer = self._open(self._log_dir, purge_step=step + 1)

    def close(self) -> None:
        """Flush and close the writer."""
        self._writer.close()


class TrackerSink:
    """Writes to Weights & Biases or Trackio, which share one interface.

    A run that goes on continues the tracked run of its folder. Weights & Biases drops steps below
    its newest one, so a step is a figure there, and the axis of all others: steps that are taken
    again are drawn again.
    """

    def __init__(self, module: str, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Start or continue a tracked run.

        Raises:
            ConfigError: The extra that brings the tracker is not installed.
        """
        try:
            self._tracker: Any = import_module(module)
        except ImportError as error:
            message = (
                f"must be an installed tracker, got {module!r}. "
                f"Install it with: pip install 'webrl[{_EXTRAS[module]}]'."
            )
            raise ConfigError([Problem(key="logging.tracker", message=message)]) from error
        self._has_axis = module == "wandb"
        project = os.environ.get(f"{module.upper()}_PROJECT", "webrl")
        place = {"dir": str(run_dir), "id": _tracker_id(run_dir)} if self._has_axis else {}
        self._tracker.init(
            project=project, name=run_dir.name, config=dict(config), resume="allow", **place
        )
        if self._has_axis:
            self._tracker.define_metric("*", step_metric="step")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log one step."""
        if self._has_axis:
            self._tracker.log({"step": step, **metrics})
        else:
            self._tracker.log(dict(metrics), step=step)

    def rewind(self, step: int) -> None:
        """Change nothing: what was sent to a tracker stays there."""

    def close(self) -> None:
        """Finish the tracked run."""
        self._tracker.finish()


def _tracker_id(run_dir: Path) -> str:
    """Return the id of the folder's tracked run; it is made once and kept there."""
    path = run_dir / "tracker_id"
    if not path.is_file():
        path.write_text(secrets.token_hex(8), encoding="utf-8")
    return path.read_text(encoding="utf-8").strip()


class MetricLog:
    """All sinks of a run behind one `log`, for every thread of the run."""

    def __init__(self, sinks: Sequence[MetricSink]) -> None:
        """Take over the sinks; `close` closes them."""
        self._sinks = list(sinks)
        self._lock = threading.Lock()
        self.num_failures: Counter[str] = Counter()
        """Calls that failed, by the sink's name."""

    @classmethod
    def open(
        cls, run_dir: Path, tracker: str, *, config: Mapping[str, Any] | None = None
    ) -> MetricLog:
        """Open `metrics.jsonl` and the configured tracker of a run.

        Args:
            tracker: `tensorboard`, `wandb`, `trackio` or `none`.
            config: Resolved configuration, shown by the tracker.

        Raises:
            ConfigError: The extra that brings the tracker is not installed.
        """
        log = cls([JsonLinesSink(run_dir / "metrics.jsonl")])
        try:
            if tracker == "tensorboard":
                log._sinks.append(TensorBoardSink(run_dir / "tensorboard"))
            elif tracker in _EXTRAS:
                log._sinks.append(TrackerSink(tracker, run_dir, config or {}))
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - see `_each`
            log._note_failure(tracker, "open", error)
        return log

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write the figures of one step to every sink; a step may come in parts."""
        self._each("log", lambda sink: sink.log(metrics, step))

    def rewind(self, step: int) -> None:
        """Forget every step after this one; a run goes on from its checkpoint."""
        self._each("rewind", lambda sink: sink.rewind(step))

    def close(self) -> None:
        """Close every sink, and say how often one failed."""
        self._each("close", lambda sink: sink.close())
        for name, count in self.num_failures.items():
            logger.warning("%s failed %d times in this run", name, count)

    def _each(self, what: str, call: Callable[[MetricSink], None]) -> None:
        with self._lock:
            for sink in self._sinks:
                try:
                    call(sink)
                except Exception as error:  # noqa: BLE001 - the named boundary: trackers raise anything
                    self._note_failure(type(sink).__name__, what, error)

    def _note_failure(self, name: str, what: str, error: Exception) -> None:
        self.num_failures[name] += 1
        if self.num_failures[name] == 1:
            logger.warning(
                "%s failed at %s, training goes on without it: %s: %s",
                name,
                what,
                type(error).__name__,
                error,
            )
