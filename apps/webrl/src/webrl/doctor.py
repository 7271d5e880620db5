"""What the machine offers: the checks behind `webrl doctor` and those that `webrl train` runs first.

Invariants: a check never raises for what it finds, it answers with what is wrong and the fix; the
checks that `preflight` runs start no process and leave nothing on disk.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from webrl.browser.chromium import find_chromium
from webrl.config import WebRLConfig, check_dataset_size
from webrl.errors import PreflightError, TaskError
from webrl.tasks import load_tasks

__all__ = [
    "Check",
    "check_browser",
    "check_disk",
    "check_fonts",
    "check_miniwob",
    "check_package",
    "check_ports",
    "check_python",
    "check_run_dir",
    "check_sglang",
    "check_tasks",
    "checkpoint_bytes",
    "preflight",
]

VISION_CACHE_VARIABLE = "SGLANG_VLM_CACHE_SIZE_MB"
"""SGLang keeps vision features by image and no weight update clears them; 0 turns that off."""

_TINY_POLICY_BYTES = 4 << 20
"""Weights of the tiny policy in float32, rounded up."""
_STATE_RATIO = 7
"""Bytes of a checkpoint over bytes of bfloat16 weights: the weights, float32 masters, two moments."""
_LOG_BYTES = 256 << 20
"""Room for metrics, logs and sampled trajectories."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """What one look at the machine found."""

    name: str
    """What was looked at."""
    is_ok: bool
    """Whether a run can rely on it."""
    detail: str
    """What was found."""
    fix: str = ""
    """What to do when it is not ok."""
    is_required: bool = True
    """Whether `webrl train` needs it on every machine."""


def check_python() -> Check:
    """Look at the interpreter."""
    is_ok = sys.version_info >= (3, 11)
    fix = "Use Python 3.11 or newer."
    return Check(name="python", is_ok=is_ok, detail=platform.python_version(), fix=fix)


def check_package(name: str) -> Check:
    """Look for an installed distribution, without importing it."""
    fix = "Install the environment with: make setup."
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name=name, is_ok=False, detail="not installed", fix=fix)
    return Check(name=name, is_ok=True, detail=version)


def check_miniwob() -> Check:
    """Look for the built-in task pages, without importing their package."""
    spec = importlib.util.find_spec("miniwob")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        pages = Path(folder) / "html" / "miniwob"
        if pages.is_dir():
            count = len(list(pages.glob("*.html")))
            return Check(name="miniwob", is_ok=True, detail=f"{count} task pages")
    fix = "Install the environment with: make setup."
    return Check(name="miniwob", is_ok=False, detail="task pages not found", fix=fix)


def check_browser() -> Check:
    """Look for a Chromium that can be started."""
    try:
        return Check(name="browser", is_ok=True, detail=str(find_chromium()))
    except PreflightError as error:
        return Check(name="browser", is_ok=False, detail=str(error), fix="Or run: make setup.")


def check_tasks(names: Sequence[str]) -> Check:
    """Look whether the tasks are known."""
    try:
        load_tasks(names)
    except TaskError as error:
        return Check(name="tasks", is_ok=False, detail=str(error))
    return Check(name="tasks", is_ok=True, detail=", ".join(names))


def check_judge(config: WebRLConfig) -> Check:
    """Look for the key of the judge in the environment; its value is shown nowhere."""
    name = config.judge.api_key_env
    if config.judge.url is None or name is None:
        return Check(name="judge", is_ok=True, detail="no key needed")
    is_set = bool(os.environ.get(name, "").strip())
    detail = f"{name} is {'set' if is_set else 'not set'}"
    fix = "Export the key, here and wherever rollout workers start."
    return Check(name="judge", is_ok=is_set, detail=detail, fix=fix)


def check_fonts() -> Check:
    """Look for the font that the task pages are laid out with."""
    roots = [Path("/usr/share/fonts"), Path("~/.local/share/fonts").expanduser()]
    found = any(path for root in roots for path in root.glob("**/LiberationSans-Regular.ttf"))
    detail = "Liberation Sans" if found else "Liberation Sans not found; text is wider without it"
    fix = "apt-get install fonts-liberation"
    return Check(name="fonts", is_ok=found, detail=detail, fix=fix, is_required=False)


def check_sglang() -> Check:
    """Look for SGLang, and for a cache of image features that would outlive weight updates."""
    name, size = "sglang", os.environ.get(VISION_CACHE_VARIABLE)
    found = check_package(name)
    if not found.is_ok:
        detail = "not installed; only sglang[...] allocations need it"
        return Check(name=name, is_ok=True, detail=detail, is_required=False)
    if size in (None, "0"):
        return Check(name=name, is_ok=True, detail=found.detail, is_required=False)
    detail = (
        f"{found.detail}, {VISION_CACHE_VARIABLE}={size}: features of repeated images stay stale"
    )
    fix = f"Unset {VISION_CACHE_VARIABLE}, or set it to 0, unless the vision tower is frozen."
    return Check(name=name, is_ok=False, detail=detail, fix=fix, is_required=False)


def _nearest_folder(path: Path) -> Path:
    """Return the folder itself, or the closest one above it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def check_disk(folder: Path, needed_bytes: int) -> Check:
    """Look for free room below `folder`, which need not exist yet."""
    free = shutil.disk_usage(_nearest_folder(folder.absolute())).free
    detail = f"{free / 1e9:.1f} GB free for {folder}, {needed_bytes / 1e9:.1f} GB needed"
    fix = "Free some room, set run_dir to another disk, or lower checkpoint.keep."
    return Check(name="disk", is_ok=free >= needed_bytes, detail=detail, fix=fix)


def check_ports(first: int, count: int) -> Check:
    """Look whether `count` ports from `first` are free on loopback."""
    for port in range(first, first + count):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                detail = f"port {port} is taken ({error.strerror})"
                fix = "Set inference.base_port to a free one, or to 0 for any."
                return Check(name="ports", is_ok=False, detail=detail, fix=fix)
    return Check(name="ports", is_ok=True, detail=f"{count} free from {first}")


def check_run_dir(run_dir: Path, *, is_resumed: bool) -> Check:
    """Look whether the run can write its results, and whether another run's lie there."""
    name = "run_dir"
    is_used = run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir()))
    if is_used and not is_resumed:
        fix = f"Continue it with --resume {run_dir}, or set run_dir to a new folder."
        return Check(name=name, is_ok=False, detail=f"{run_dir} is already used", fix=fix)
    folder = _nearest_folder(run_dir.absolute())
    if not os.access(folder, os.W_OK | os.X_OK):
        fix = "Set run_dir to a folder that you may write to."
        return Check(name=name, is_ok=False, detail=f"{folder} is not writable", fix=fix)
    return Check(name=name, is_ok=True, detail=str(run_dir))


def checkpoint_bytes(config: WebRLConfig) -> int:
    """Return the room that the checkpoints of a run can take, in bytes, the one in writing too."""
    weights = _TINY_POLICY_BYTES
    if config.policy.path is not None:
        with suppress(OSError):
            files = list(Path(config.policy.path).glob("*.safetensors"))
            weights = sum(file.stat().st_size for file in files) or weights
    return weights * _STATE_RATIO * (config.checkpoint.keep + 1)


def _check_policy(config: WebRLConfig) -> Check:
    path = config.policy.path
    if path is None:
        return Check(name="policy", is_ok=True, detail="a tiny one is made")
    if (Path(path) / "config.json").is_file():
        return Check(name="policy", is_ok=True, detail=path)
    fix = "Set policy.path to a downloaded Hugging Face checkpoint; a Hub id is not enough."
    return Check(
        name="policy", is_ok=False, detail=f"{path} is not a folder with a config.json", fix=fix
    )


def preflight(config: WebRLConfig, *, is_resumed: bool) -> None:
    """Refuse to start what can not end well.

    Args:
        config: the run's configuration, its `run_dir` filled in.
        is_resumed: whether the run goes on in a folder that holds one already.

    Raises:
        PreflightError: something is missing; every problem is one line with its fix.
        ConfigError: there are fewer tasks to train on than one batch takes.
    """
    run_dir = Path(config.run_dir)
    checks = [
        check_run_dir(run_dir, is_resumed=is_resumed),
        check_disk(run_dir, checkpoint_bytes(config) + _LOG_BYTES),
        _check_policy(config),
        check_browser(),
        check_miniwob(),
        check_tasks([task.name for task in config.tasks]),
        check_judge(config),
    ]
    if config.inference.base_port:
        servers = config.allocation.role("rollout").dims.d + config.num_test_servers
        checks.append(check_ports(config.inference.base_port, servers))
    if config.logging.tracker in ("wandb", "trackio"):
        tracker = check_package(config.logging.tracker)
        fix = f"Install it with: pip install 'webrl[{tracker.name}]', or set logging.tracker."
        checks.append(Check(name=tracker.name, is_ok=tracker.is_ok, detail=tracker.detail, fix=fix))
    failed = [check for check in checks if not check.is_ok]
    if failed:
        lines = [
            f"{check.name}: {check.detail.rstrip('.')}. {check.fix}".rstrip() for check in failed
        ]
        raise PreflightError("\n".join(lines))
    check_dataset_size(config, _count_tasks(config))


def _count_tasks(config: WebRLConfig) -> int:
    """Return how many different groups the training tasks can give."""
    tasks = load_tasks(entry.name for entry in config.tasks if entry.split != "test")
    return sum(config.env.num_train_seeds if task.is_seeded else 1 for task in tasks)
