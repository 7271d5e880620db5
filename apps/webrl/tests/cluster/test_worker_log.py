"""A worker's last words, and who hears them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ray.exceptions import ActorDiedError
from webrl.cluster.scheduler import WorkerHandle, call_worker
from webrl.cluster.worker_log import WORKER_LOG
from webrl.errors import EngineCallError, WorkerLostError

WORKER = """
import logging, os
from webrl.cluster.worker_log import open_worker_log
open_worker_log()
print("a word", flush=True)
logging.getLogger("webrl").info("a note")
os.abort()
"""


def test_output_notes_and_the_stack_of_a_crash_are_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "actor-0.log"
    environment = {**os.environ, WORKER_LOG: str(path)}
    ended = subprocess.run(
        [sys.executable, "-c", WORKER], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode < 0
    text = path.read_text()
    assert "a word" in text
    assert "INFO webrl: a note" in text
    assert "Fatal Python error: Aborted" in text
    assert ended.stdout == ""


class Worker:
    """What a worker is in its own process."""

    async def work(self) -> None: ...

    async def wait(self) -> None: ...


class Actor:
    """Dies of its first call; never answers the other one."""

    class work:
        @staticmethod
        async def remote() -> None:
            raise ActorDiedError

    class wait:
        @staticmethod
        async def remote() -> None:
            await asyncio.Event().wait()


def test_an_error_of_a_lost_or_silent_worker_ends_with_its_log(tmp_path: Path) -> None:
    path = tmp_path / "actor-0.log"
    path.write_text("loading\nout of memory\n")
    worker = WorkerHandle[Worker](role="actor", rank=0, actor=Actor(), log_path=path)
    with pytest.raises(WorkerLostError, match=r"(?s)actor/0 is gone.*out of memory"):
        asyncio.run(call_worker(worker, 9, Worker.work))
    with pytest.raises(EngineCallError, match=r"(?s)within 0\.01 s.*out of memory"):
        asyncio.run(call_worker(worker, 0.01, Worker.wait))
