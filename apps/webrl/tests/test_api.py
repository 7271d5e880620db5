"""`import webrl`: what a program or a notebook calls."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import webrl
from webrl.api import outside_of_loops
from webrl.process_log import log_to_file


def test_what_is_exported_exists_and_imports_nothing_heavy() -> None:
    program = (
        "import sys, webrl; assert all(hasattr(webrl, name) for name in webrl.__all__); "
        "print(*({'torch', 'ray', 'transformers', 'playwright'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_work_with_a_loop_of_its_own_runs_inside_of_a_running_one() -> None:
    def work() -> tuple[str, bool]:
        text = asyncio.run(asyncio.sleep(0, "done"))
        return text, threading.current_thread() is threading.main_thread()

    async def cell() -> tuple[str, bool]:
        return outside_of_loops(work)

    assert outside_of_loops(work) == ("done", True)
    assert asyncio.run(cell()) == ("done", False)


def test_a_run_that_can_not_start_raises_in_a_running_loop(tmp_path: Path) -> None:
    loaded = webrl.load_config("laptop", [f"run_dir={tmp_path / 'run'}", "policy.path=nowhere"])

    async def cell() -> Path:
        return webrl.train(loaded)

    with pytest.raises(webrl.PreflightError, match="nowhere is not a folder"):
        asyncio.run(cell())
    with pytest.raises(webrl.WebRLError, match=r"policy must be a folder with a config\.json"):
        webrl.evaluate(loaded, tmp_path)
    assert not (tmp_path / "run").exists()


def test_handlers_of_the_program_stay_while_a_run_writes_its_log(tmp_path: Path) -> None:
    root, own = logging.getLogger(), logging.NullHandler()
    root.addHandler(own)
    before, level = root.handlers[:], root.level
    try:
        with log_to_file(tmp_path / "run.log", "INFO"):
            assert own in root.handlers
            logging.getLogger("webrl").info("hello")
        assert (root.handlers, root.level) == (before, level)
    finally:
        root.removeHandler(own)
    assert "hello" in (tmp_path / "run.log").read_text()
