"""Metric sinks of a run: `metrics.jsonl` always, one tracker by configuration.

Invariants:
    * a line of `metrics.jsonl` is written whole and flushed, so a killed run keeps every step;
    * a run that goes on from a checkpoint forgets the steps after it: they are taken again;
    * a tracker that fails never stops training: the failure is logged once and the sink is dropped.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from webrl.errors import ConfigError, Problem

logger = logging.getLogger(__name__)

_EXTRAS = {"wandb": "wandb", "trackio": "trackio"}


def drop_later_lines(path: Path, step: int) -> None:
    """Cut a JSON-lines file in front of its first line whose `step` is greater.

    Args:
        path: The file; its lines are in the order of their steps, a torn last line is cut too.
        step: The last step to keep.
    """
    kept = 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n") or json.loads(line)["step"] > step:
                break
            kept += len(line)
    os.truncate(path, kept)


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
        self._file = path.open("a", encoding="utf-8")
        self._clock = clock

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write one line; non-finite values become null, as JSON has none."""
        finite = {k: (v if math.isfinite(v) else None) for k, v in metrics.items()}
        self._file.write(json.dumps({"step": step, "time_s": self._clock(), **finite}) + "\n")
        self._file.flush()

    def rewind(self, step: int) -> None:
        """Drop the lines of later steps."""
        drop_later_lines(Path(self._file.name), step)

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
    """Writes to Weights & Biases or Trackio, which share one interface."""

    def __init__(self, module: str, project: str, name: str, config: Mapping[str, Any]) -> None:
        """Start a tracked run.

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
        self._tracker.init(project=project, name=name, config=dict(config))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log one step."""
        self._tracker.log(dict(metrics), step=step)

    def rewind(self, step: int) -> None:
        """Change nothing: what was sent to a tracker stays there."""

    def close(self) -> None:
        """Finish the tracked run."""
        self._tracker.finish()


class MetricLog:
    """All sinks of a run behind one `log`."""

    def __init__(self, sinks: list[MetricSink]) -> None:
        """Take over the sinks; `close` closes them."""
        self._sinks = sinks

    @classmethod
    def open(
        cls, run_dir: Path, tracker: str, *, config: Mapping[str, Any] | None = None
    ) -> MetricLog:
        """Open `metrics.jsonl` and the configured tracker of a run.

        Args:
            tracker: `tensorboard`, `wandb`, `trackio` or `none`.
            config: Resolved configuration, shown by the tracker.
        """
        sinks: list[MetricSink] = [JsonLinesSink(run_dir / "metrics.jsonl")]
        if tracker == "tensorboard":
            sinks.append(TensorBoardSink(run_dir / "tensorboard"))
        elif tracker in _EXTRAS:
            sinks.append(TrackerSink(tracker, "webrl", run_dir.name, config or {}))
        return cls(sinks)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write one step to every sink."""
        for sink in list(self._sinks):
            try:
                sink.log(metrics, step)
            except (OSError, RuntimeError, ValueError) as error:
                logger.warning("metric sink %s dropped: %s", type(sink).__name__, error)
                self._sinks.remove(sink)

    def rewind(self, step: int) -> None:
        """Forget every step after this one; a run goes on from its checkpoint."""
        for sink in self._sinks:
            sink.rewind(step)

    def close(self) -> None:
        """Close every sink."""
        for sink in self._sinks:
            sink.close()
