"""Sinks keep every step and never stop a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest
from awrl_pixelstore import PixelStoreStatistics
from webrl.errors import ConfigError
from webrl.records.metrics import JsonLinesSink, MetricLog, continued, is_total
from webrl.records.run_folder import pack_state, unpack_state
from webrl.rollout.task_stream import TaskStream
from webrl.tasks import load_tasks
from webrl.training.step_loop import Progress


class TrackerError(Exception):
    """As trackers raise: of no class that anybody knows."""


class BrokenSink:
    """Fails at every call, or works at every second one."""

    def __init__(self, *, works_sometimes: bool = False) -> None:
        self.logged: list[int] = []
        self._works_sometimes = works_sometimes
        self._num_calls = 0

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._fail()
        self.logged.append(step)

    def rewind(self, step: int) -> None:
        self._fail()

    def close(self) -> None:
        self._fail()

    def _fail(self) -> None:
        self._num_calls += 1
        if not self._works_sometimes or self._num_calls % 2:
            raise TrackerError(f"no connection at call {self._num_calls}")


def test_each_step_is_one_whole_line_and_not_finite_values_are_null(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonLinesSink(path, clock=lambda: 12.5)
    sink.log({"loss/value": 1.5, "loss/bad": float("nan")}, 1)
    line = json.loads(path.read_text())
    assert line == {"step": 1, "time_s": 12.5, "loss/value": 1.5, "loss/bad": None}
    sink.close()


def test_a_sink_that_fails_is_warned_about_once_and_counted_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricLog([BrokenSink(), JsonLinesSink(path)])
    for step in range(1, 4):
        log.log({"a": float(step)}, step)
    log.rewind(2)
    log.close()
    assert [json.loads(line)["a"] for line in path.read_text().splitlines()] == [1.0, 2.0]
    assert log.num_failures == {"BrokenSink": 5}
    assert [record.getMessage() for record in caplog.records] == [
        "BrokenSink failed at log, training goes on without it: TrackerError: no connection at "
        "call 1",
        "BrokenSink failed 5 times in this run",
    ]


def test_a_sink_that_works_again_gets_the_later_steps() -> None:
    sink = BrokenSink(works_sometimes=True)
    log = MetricLog([sink])
    for step in range(1, 5):
        log.log({}, step)
    assert sink.logged == [2, 4]


def test_a_tracker_that_can_not_be_opened_leaves_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorboard").write_text("a file in the way")
    log = MetricLog.open(tmp_path, "tensorboard")
    log.log({"a": 1.0}, 1)
    log.close()
    assert log.num_failures == {"tensorboard": 1}
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 1


FAKE_WANDB = """
calls = []
def init(**settings): calls.append(("init", settings))
def define_metric(name, step_metric): calls.append(("axis", name, step_metric))
def log(values): calls.append(("log", values))
def finish(): calls.append(("finish",))
"""


def test_weights_and_biases_gets_the_whole_configuration_and_a_resume_is_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb.py").write_text(FAKE_WANDB)
    monkeypatch.syspath_prepend(tmp_path)
    run_dir = tmp_path / "first"
    run_dir.mkdir()
    for step in (1, 2):
        log = MetricLog.open(run_dir, "wandb", config={"actor": {"dtype": "float32"}})
        log.log({"a": 1.0}, step)
        log.close()
    calls = sys.modules.pop("wandb").calls
    first, second = (call[1] for call in calls if call[0] == "init")
    assert first == second
    assert first["config"] == {"actor": {"dtype": "float32"}}
    assert (first["resume"], first["name"], len(first["id"])) == ("allow", "first", 16)
    assert ("axis", "*", "step") in calls
    assert [call[1] for call in calls if call[0] == "log"] == [
        {"step": 1, "a": 1.0},
        {"step": 2, "a": 1.0},
    ]


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


def test_figures_that_come_late_belong_to_their_step_and_outlive_a_rewind(tmp_path: Path) -> None:
    log = MetricLog.open(tmp_path, "none")
    for step in (1, 2, 3):
        log.log({"a": 1.0}, step)
    log.log({"eval/success": 0.5}, 1)
    log.log({"eval/success": 0.7}, 3)
    log.rewind(2)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 1]
    assert lines[-1]["eval/success"] == 0.5


def test_what_counts_from_the_start_of_a_run_goes_on_after_a_resume() -> None:
    counts = {
        "rollout/episodes_total": 10.0,
        "rollout/faulted_episodes": 1.0,
        "staleness/wasted_hard_episodes": 2.0,
        "pixelstore/num_puts": 30.0,
    }
    now = {"rollout/success_share": 0.5, "pixelstore/num_entries": 7.0, "rollout/slots": 4.0}
    first = continued({**counts, **now}, {})
    assert first == {**counts, **now}
    totals = {key: value for key, value in first.items() if is_total(key)}
    assert totals == counts
    stream = TaskStream(load_tasks(["miniwob/click-test"]), num_seeds=9, group_size=2, seed=0)
    state = pack_state(Progress(version=3, totals=totals), stream)
    progress, _ = unpack_state(json.loads(json.dumps(state)), 3, stream)
    second = continued({**counts, **now}, progress.totals)
    assert second == {**{key: 2 * value for key, value in counts.items()}, **now}


def test_every_count_of_the_parts_is_known_as_one() -> None:
    pixels = {f"pixelstore/{field.name}" for field in fields(PixelStoreStatistics)}
    now = {"num_entries", "num_memory_bytes", "num_disk_bytes", "num_trajectories"}
    now |= {"num_references", "num_bytes"}
    counted = {name for name in pixels if name.startswith("pixelstore/num_")}
    assert {name for name in pixels if is_total(name)} == counted - {
        f"pixelstore/{name}" for name in now
    }


def test_a_tracker_that_is_not_installed_names_its_extra(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"logging.tracker .*webrl\[trackio\]"):
        MetricLog.open(tmp_path, "trackio")


def test_tensorboard_gets_the_scalars(tmp_path: Path) -> None:
    log = MetricLog.open(tmp_path, "tensorboard")
    log.log({"a/b": 1.0}, 1)
    log.close()
    assert list((tmp_path / "tensorboard").glob("events*"))
