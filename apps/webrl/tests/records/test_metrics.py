"""Sinks keep every step and never stop a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from webrl.errors import ConfigError
from webrl.records.metrics import JsonLinesSink, MetricLog


class BrokenSink:
    """Fails on every step."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        raise OSError(f"disk full at step {step} of {len(metrics)}")

    def rewind(self, step: int) -> None:
        """Nothing to forget."""

    def close(self) -> None:
        """Nothing to close."""


def test_each_step_is_one_whole_line_and_not_finite_values_are_null(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonLinesSink(path, clock=lambda: 12.5)
    sink.log({"loss/value": 1.5, "loss/bad": float("nan")}, 1)
    line = json.loads(path.read_text())
    assert line == {"step": 1, "time_s": 12.5, "loss/value": 1.5, "loss/bad": None}
    sink.close()


def test_a_sink_that_fails_is_dropped_and_the_others_go_on(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricLog([BrokenSink(), JsonLinesSink(path)])
    log.log({"a": 1.0}, 1)
    log.log({"a": 2.0}, 2)
    log.close()
    assert [json.loads(line)["a"] for line in path.read_text().splitlines()] == [1.0, 2.0]


def test_a_run_that_goes_on_forgets_later_steps_and_a_torn_line(tmp_path: Path) -> None:
    log = MetricLog.open(tmp_path, "none")
    for step in (1, 2, 3):
        log.log({"a": 1.0}, step)
    path = tmp_path / "metrics.jsonl"
    with path.open("a") as file:
        file.write('{"step": 4, "a"')
    log.rewind(2)
    log.log({"a": 9.0}, 3)
    log.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["step"], line["a"]) for line in lines] == [(1, 1.0), (2, 1.0), (3, 9.0)]


def test_a_tracker_that_is_not_installed_names_its_extra(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"logging.tracker .*webrl\[trackio\]"):
        MetricLog.open(tmp_path, "trackio")


def test_tensorboard_gets_the_scalars(tmp_path: Path) -> None:
    log = MetricLog.open(tmp_path, "tensorboard")
    log.log({"a/b": 1.0}, 1)
    log.close()
    assert list((tmp_path / "tensorboard").glob("events*"))
