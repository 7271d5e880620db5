"""Runs every program of `rank_programs.py` once: on two ranks, and in this process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

_SCRIPT = Path(__file__).with_name("rank_programs.py")


def _load_programs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("awrl_trainer_rank_programs", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(_SCRIPT.parent))
    spec.loader.exec_module(module)
    return module


CHANGES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}
observers: list[Callable[[], None]] = []


def audit(event: str, _: tuple[object, ...]) -> None:
    if observers and event in CHANGES:
        observer = observers.pop()
        observer()
        observers.append(observer)


sys.addaudithook(audit)


@contextmanager
def _before_each_change(act: Callable[[], None]) -> Generator[None]:
    """Call something before each change to any file of this process."""
    observers.append(act)
    try:
        yield
    finally:
        observers.clear()


@pytest.fixture(scope="session")
def before_each_change() -> Callable[[Callable[[], None]], AbstractContextManager[None]]:
    """Calls something before each change to any file, inside of a block."""
    return _before_each_change


@pytest.fixture(scope="session")
def programs() -> ModuleType:
    """The module of programs, with its row makers."""
    torch.set_num_threads(1)
    return _load_programs()


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with the results of all programs on two ranks."""
    directory = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(_SCRIPT), str(rank), "2", str(directory)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=280)[0] for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output[-4000:]
    return directory


@pytest.fixture(scope="session")
def on_two_ranks(two_ranks: Path) -> Callable[[str], list[Any]]:
    """Returns what a program returned on each of two ranks."""

    def read(name: str) -> list[Any]:
        paths = [two_ranks / f"{name}_2_{rank}.pt" for rank in range(2)]
        return [torch.load(path, weights_only=False) for path in paths]

    return read


@pytest.fixture(scope="session")
def in_one_process(programs: ModuleType, two_ranks: Path) -> Callable[[str], Any]:
    """Runs a program in this process, in the directory of the two ranks."""
    results: dict[str, Any] = {}

    def run(name: str) -> Any:
        if name not in results:
            results[name] = programs.PROGRAMS[name](two_ranks)
        return results[name]

    return run
