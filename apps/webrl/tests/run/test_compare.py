"""Figures of two modes from their metrics, and the synchronous side of a configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from webrl.config import load_config
from webrl.run.compare import figures_of, synchronous_config, table


def write(path: Path, rates: list[float]) -> Path:
    rows = [
        {
            "time/step_s": 2.0,
            "rollout/episodes_per_s": rate,
            "batch/num_rows": 10.0,
            "idle/rollout_share": 0.1,
            "idle/actor_share": 0.5,
            "publish/window_s": 0.02,
        }
        for rate in rates
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_the_first_step_is_left_out_and_rates_are_weighted_by_time(tmp_path: Path) -> None:
    figures = figures_of("asynchronous", write(tmp_path / "m.jsonl", [100.0, 10.0, 20.0]))
    assert figures.num_steps == 2
    assert figures.episodes_per_s == pytest.approx(15.0)
    assert figures.rows_per_s == pytest.approx(5.0)
    assert figures.window_ms == pytest.approx(20.0)


def test_the_table_holds_the_ratio(tmp_path: Path) -> None:
    fast = figures_of("asynchronous", write(tmp_path / "a.jsonl", [1.0, 30.0]))
    slow = figures_of("synchronous", write(tmp_path / "s.jsonl", [1.0, 10.0]))
    assert table(fast, slow).endswith("3.00")


def test_the_twin_differs_in_nothing_but_the_pool() -> None:
    config = load_config("laptop").config
    synchronous = synchronous_config(config)
    assert synchronous.is_synchronous
    assert "|" in synchronous.allocation_mode
    assert (synchronous.tasks, synchronous.env, synchronous.gconfig, synchronous.actor) == (
        config.tasks,
        config.env,
        config.gconfig,
        config.actor,
    )
    assert synchronous.rollout.consumer_batch_size == config.rollout.consumer_batch_size
