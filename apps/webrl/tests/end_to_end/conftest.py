"""A small policy for runs, and the command that runs it in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RUN_DEADLINE_S = 420.0
SMALL = (
    "tasks=[{name='miniwob/click-test', max_steps=1}]",
    "rollout.consumer_batch_size=16",
    "rollout.max_concurrent_rollouts=8",
    "rollout.max_head_offpolicyness=1",
    "env.slots_per_worker=8",
    "gconfig.n_samples=4",
    "checkpoint.save_every=1",
    "logging.sample_every=1",
    "logging.tracker=none",
)


class Runs:
    """Runs of the real command, as a user starts it."""

    small = SMALL

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start `webrl train` with a process group of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "webrl", "train", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )

    def train(self, *arguments: str) -> str:
        """Run `webrl train` to its end and return what it printed."""
        process = self.start(*arguments)
        try:
            text, _ = process.communicate(timeout=RUN_DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        assert process.returncode == 0, text
        return text

    def lines(self, run_dir: Path) -> list[dict[str, Any]]:
        """Return the metrics of every step."""
        lines = (run_dir / "metrics.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, lines) if "eval/success" not in line]

    def samples(self, run_dir: Path) -> list[dict[str, Any]]:
        """Return every sampled trajectory."""
        files = sorted((run_dir / "trajectories").glob("*/trajectory.json"))
        return [json.loads(file.read_text()) for file in files]


@pytest.fixture(scope="session")
def runs() -> Runs:
    """Return what starts and reads runs."""
    return Runs()


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a policy that clicks somewhere: enough for mixed groups, seconds to make."""
    from webrl.policy import InitPolicyConfig, WarmupConfig, init_policy

    folder = tmp_path_factory.mktemp("policy") / "p"
    warmup = WarmupConfig(num_updates=40, batch_size=16)
    init_policy(folder, InitPolicyConfig(seed=1, warmup=warmup))
    return folder
