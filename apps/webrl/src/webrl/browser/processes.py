"""Which processes and folders are ours, and how they end.

Invariants:

* a process is ours when its environment names our private temporary folder: driver and browser
  inherit it, nobody else has it; nothing is ever ended by name;
* the folder's name holds the id and the start time of the process that made it, so a later run
  can tell a folder of the dead from one in use.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from weakref import WeakKeyDictionary

import psutil

logger = logging.getLogger(__name__)
_PREFIX = "awrl-browser-"


def make_private_folder() -> Path:
    """Return a new temporary folder that is marked as this process's."""
    owner = psutil.Process()
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{owner.pid}-{int(owner.create_time() * 100)}-"))


def remove_folder(folder: Path) -> None:
    """Remove `folder` with all it holds; a file that vanishes meanwhile is no error."""
    shutil.rmtree(folder, ignore_errors=True)


_SPAWNING: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
"""One spawn at a time in each event loop: the environment is the whole process's."""


@asynccontextmanager
async def temporary_folder_for_children(folder: Path) -> AsyncGenerator[None]:
    """Make processes that start inside inherit `folder` as their `TMPDIR`.

    Playwright gives no other way to say where its driver puts profiles and artifacts.
    """
    lock = _SPAWNING.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    async with lock:
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = str(folder)
        try:
            yield
        finally:
            if before is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = before


def browser_environment(folder: Path) -> dict[str, str | float | bool]:
    """Return the environment of a browser: where things are, and no secrets of this process."""
    kept = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "FONTCONFIG_PATH", "FONTCONFIG_FILE")
    found: dict[str, str | float | bool] = {k: os.environ[k] for k in kept if k in os.environ}
    return found | {"TMPDIR": str(folder), "HOME": str(folder), "TZ": "UTC"}


def owned_processes(folder: Path) -> list[psutil.Process]:
    """Return every living process whose environment names `folder`, but this one."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get("TMPDIR") == str(folder):
                found.append(process)
    return found


def kill_tree(pid: int) -> None:
    """Kill process `pid` and its descendants; one that is gone already is no error."""
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
        for process in family:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(family, timeout=2)


def kill_owned(folder: Path) -> int:
    """Kill every process of `folder`; return how many there were."""
    family = owned_processes(folder)
    for process in family:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(family, timeout=2)
    return len(family)


def proportional_bytes(pid: int) -> dict[int, int]:
    """Return the proportional memory (PSS, bytes) of process `pid` and of each descendant, by id."""
    used: dict[int, int] = {}
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                used[process.pid] = process.memory_full_info().pss
    return used


def kill_renderer(pid: int) -> bool:
    """Kill process `pid` if it is one that shows pages; return whether it was."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        if "--type=renderer" in process.cmdline():
            process.kill()
            return True
    return False


def sweep_leftovers() -> list[Path]:
    """End what dead owners left behind in the temporary folder; return the folders removed."""
    removed: list[Path] = []
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if not folder.is_dir() or _owner_lives(folder.name):
            continue
        killed = kill_owned(folder)
        remove_folder(folder)
        removed.append(folder)
        logger.info("removed %s of a dead process, with %d of its processes", folder, killed)
    return removed


def _owner_lives(name: str) -> bool:
    parts = name.removeprefix(_PREFIX).split("-")
    if len(parts) != 3 or not parts[0].isdigit() or not parts[1].isdigit():
        return True  # not ours to judge
    try:
        return int(psutil.Process(int(parts[0])).create_time() * 100) == int(parts[1])
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
