"""What the machine offers: the checks behind `webrl doctor` and those that `webrl train` runs first.

Invariants: a check never raises for what it finds, it answers with what is wrong and the fix; the
checks that `preflight` runs start no process and leave nothing on disk.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import logging
import netrc
import os
import platform
import shutil
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from webrl.config import PLACEHOLDER, WebRLConfig, check_dataset_size
from webrl.errors import PreflightError, TaskError
from webrl.launch.run_tasks import test_tasks, train_tasks
from webrl.memory_budget import find_shortages

logger = logging.getLogger(__name__)

VISION_CACHE_VARIABLE = "SGLANG_VLM_CACHE_SIZE_MB"
"""SGLang keeps vision features by image and no weight update clears them; 0 turns that off."""
PACKAGES = ("torch", "ray", "transformers", "playwright")
"""Distributions without which nothing runs."""
LAPTOP_BYTES = 1 << 30
"""Room that the laptop run asks for, rounded up."""
BROWSER_START_S = 30.0
"""A browser that needs longer than this for its first page is broken."""
TINY_POLICY_BYTES = 4 << 20
"""Weights of the tiny policy in float32, rounded up."""
STATE_RATIO = 7
"""Bytes of a checkpoint over bytes of bfloat16 weights: the weights, float32 masters, two moments."""
LOG_BYTES = 256 << 20
"""Room for metrics, logs and sampled trajectories."""
SETUP = "Install the environment with: make setup."


@dataclass(frozen=True, slots=True)
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


def check_machine() -> list[Check]:
    """Look at everything that `webrl doctor` reports."""
    browser = check_browser()
    return [
        check_python(),
        *(check_package(name) for name in PACKAGES),
        check_miniwob(),
        check_fonts(),
        check_disk(Path("runs"), LAPTOP_BYTES),
        check_sglang(),
        check_gpu(),
        asyncio.run(check_browser_start(browser.detail)) if browser.is_ok else browser,
    ]


def check_python() -> Check:
    """Look at the interpreter."""
    is_ok = sys.version_info >= (3, 11)
    return Check("python", is_ok, platform.python_version(), "Use Python 3.11 or newer.")


def check_package(name: str) -> Check:
    """Look for an installed distribution, without importing it."""
    try:
        return Check(name, True, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Check(name, False, "not installed", SETUP)


def check_miniwob() -> Check:
    """Look for the built-in task pages, without importing their package."""
    spec = importlib.util.find_spec("miniwob")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        pages = Path(folder) / "html" / "miniwob"
        if pages.is_dir():
            return Check("miniwob", True, f"{len(list(pages.glob('*.html')))} task pages")
    return Check("miniwob", False, "task pages not found", SETUP)


def check_browser(headless: Literal["shell", "new"] | None = None) -> Check:
    """Look for a Chromium that can be started, of one kind where one is wanted."""
    # The browser's package brings Ray along, which `webrl --help` does not wait for.
    from webrl.browser.chromium import find_chromium  # noqa: PLC0415

    try:
        return Check("browser", True, str(find_chromium(headless=headless)))
    except PreflightError as error:
        return Check("browser", False, str(error), "Or run: make setup.")


def check_browsers(config: WebRLConfig) -> Check:
    """Look for a Chromium, or for the secrets of the browsers that run elsewhere."""
    if not config.env.browsers:
        return check_browser(config.env.headless)
    names = {name[1:-1] for text in config.env.browsers for name in PLACEHOLDER.findall(text)}
    missing = sorted(name for name in names if not os.environ.get(name, "").strip())
    fix = "Export what is missing, here and wherever rollout workers start."
    detail = f"{len(config.env.browsers)} elsewhere"
    if missing:
        detail += f"; not set: {', '.join(missing)}"
    return Check("browser", not missing, detail, fix)


async def check_browser_start(path: str) -> Check:
    """Start a browser and open an empty page."""
    # The driver takes a while to import: only `webrl doctor` pays for it.
    try:
        from playwright.async_api import Error, async_playwright  # noqa: PLC0415
    except ImportError as error:
        return Check("browser", False, f"playwright can not be imported: {error}", SETUP)

    fix = "Run webrl doctor with AWRL_CHROMIUM set to another Chromium, or reinstall it."
    try:
        async with asyncio.timeout(BROWSER_START_S), async_playwright() as driver:
            browser = await driver.chromium.launch(executable_path=path)
            await (await browser.new_page()).goto("about:blank")
            detail = f"{path} starts, version {browser.version}"
            await browser.close()
    except (Error, TimeoutError) as error:
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else f"no page within {BROWSER_START_S:g} s"
        return Check("browser", False, f"{path}: {reason}", fix)
    return Check("browser", True, detail)


def check_gpu() -> Check:
    """Look at what torch can use."""
    # torch takes seconds to import: only `webrl doctor` pays for it.
    try:
        import torch  # noqa: PLC0415
    except (ImportError, OSError) as error:
        return Check("gpu", False, f"torch can not be imported: {error}", SETUP)

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    detail = "none; the laptop configuration needs none"
    if count:
        detail = f"{count} x {torch.cuda.get_device_name(0)}"
    return Check("gpu", True, detail, is_required=False)


def check_tasks(config: WebRLConfig) -> Check:
    """Look whether the tasks are known, and can be had as the configuration wants them."""
    try:
        tasks = (*train_tasks(config), *test_tasks(config))
    except TaskError as error:
        return Check("tasks", False, str(error))
    if config.env.browsers and config.env.browser_network == "own":
        local = next((task for task in tasks if task.is_local), None)
        if local is not None:
            fix = (
                "Use tasks of sites, or browsers on this machine with env.browser_network=guarded."
            )
            detail = (
                f"{local.full_name} is served by the worker, where env.browsers do not reach it"
            )
            return Check("tasks", False, detail, fix)
    return Check("tasks", True, ", ".join(task.name for task in config.tasks))


def check_judge(config: WebRLConfig) -> Check:
    """Look for the key of the judge in the environment; its value is shown nowhere."""
    name = None if config.judge.url is None else config.judge.api_key_env
    return _check_secret("judge", name, "key", "the key")


def check_proxy(config: WebRLConfig) -> Check:
    """Look for the credentials of the proxy in the environment; their value is shown nowhere."""
    name = None if config.env.proxy is None else config.env.proxy_credentials_env
    return _check_secret("proxy", name, "credentials", "USER:PASSWORD there")


def _check_secret(what: str, name: str | None, kind: str, export: str) -> Check:
    """Look whether an environment variable holds a secret, where one is needed."""
    if name is None:
        return Check(what, True, f"no {kind} needed")
    is_set = bool(os.environ.get(name, "").strip())
    fix = f"Export {export}, here and wherever rollout workers start."
    return Check(what, is_set, f"{name} is {'set' if is_set else 'not set'}", fix)


def check_fonts() -> Check:
    """Look for the font that the task pages are laid out with."""
    roots = [Path("/usr/share/fonts"), Path("~/.local/share/fonts").expanduser()]
    found = any(path for root in roots for path in root.glob("**/LiberationSans-Regular.ttf"))
    detail = "Liberation Sans" if found else "Liberation Sans not found; text is wider without it"
    return Check("fonts", found, detail, "apt-get install fonts-liberation", is_required=False)


def check_sglang() -> Check:
    """Look for SGLang, and for a cache of image features that would outlive weight updates."""
    found, size = check_package("sglang"), os.environ.get(VISION_CACHE_VARIABLE)
    if not found.is_ok:
        detail = "not installed; only sglang[...] allocations need it"
        return Check("sglang", True, detail, is_required=False)
    if size in (None, "0"):
        return Check("sglang", True, found.detail, is_required=False)
    detail = (
        f"{found.detail}, {VISION_CACHE_VARIABLE}={size}: features of repeated images stay stale"
    )
    fix = f"Unset {VISION_CACHE_VARIABLE}, or set it to 0, unless the vision tower is frozen."
    return Check("sglang", False, detail, fix, is_required=False)


def _nearest_folder(path: Path) -> Path:
    """Return the folder itself, or the closest one above it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def check_disk(folder: Path, needed_bytes: int) -> Check:
    """Look for free room below `folder`, which need not exist yet."""
    free = shutil.disk_usage(_nearest_folder(folder.absolute())).free
    detail = f"{free / 1e9:.1f} GB free for {folder}, {needed_bytes / 1e9:.1f} GB needed"
    fix = "Free some room, set run_dir to another disk, or lower checkpoint.keep."
    return Check("disk", free >= needed_bytes, detail, fix)


def check_ports(first: int, count: int) -> Check:
    """Look whether `count` ports from `first` are free on loopback."""
    for port in range(first, first + count):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                fix = "Set inference.base_port to a free one, or to 0 for any."
                return Check("ports", False, f"port {port} is taken ({error.strerror})", fix)
    return Check("ports", True, f"{count} free from {first}")


def check_run_dir(run_dir: Path, *, is_resumed: bool) -> Check:
    """Look whether the run can write its results, and whether another run's lie there."""
    is_used = run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir()))
    if is_used and not is_resumed:
        fix = f"Continue it with --resume {run_dir}, or set run_dir to a new folder."
        return Check("run_dir", False, f"{run_dir} is already used", fix)
    folder = _nearest_folder(run_dir.absolute())
    if not os.access(folder, os.W_OK | os.X_OK):
        fix = "Set run_dir to a folder that you may write to."
        return Check("run_dir", False, f"{folder} is not writable", fix)
    return Check("run_dir", True, str(run_dir))


def checkpoint_bytes(config: WebRLConfig) -> int:
    """Return the room that the checkpoints of a run can take, in bytes, the one in writing too."""
    weights = TINY_POLICY_BYTES
    if config.policy.path is not None:
        with suppress(OSError):
            files = list(Path(config.policy.path).glob("*.safetensors"))
            weights = sum(file.stat().st_size for file in files) or weights
    return weights * STATE_RATIO * (config.checkpoint.keep + 1)


def check_policy(path: str | None) -> Check:
    """Look for the checkpoint that training starts from."""
    if path is None:
        return Check("policy", True, "a tiny one is made")
    if (Path(path) / "config.json").is_file():
        return Check("policy", True, path)
    fix = "Set policy.path to a downloaded Hugging Face checkpoint; a Hub id is not enough."
    return Check("policy", False, f"{path} is not a folder with a config.json", fix)


def check_tracker(name: str) -> Check:
    """Look for the package behind `logging.tracker`, and for the key that Weights & Biases wants."""
    if name not in ("wandb", "trackio"):
        return Check("tracker", True, f"{name} comes with webrl")
    found = check_package(name)
    if not found.is_ok:
        fix = f"Install it with: pip install 'webrl[{name}]', or set logging.tracker."
        return Check("tracker", False, f"{name} is {found.detail}", fix)
    if name == "wandb" and not _has_wandb_key():
        fix = "Run `wandb login`, set WANDB_API_KEY, or set WANDB_MODE=offline."
        return Check("tracker", False, "wandb has no key on this machine", fix)
    return Check("tracker", True, f"{name} {found.detail}")


def _has_wandb_key() -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE", "online") != "online":
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    files = [Path(os.environ.get("NETRC") or "~/.netrc"), Path("~/_netrc")]
    for file in files:
        with suppress(OSError, netrc.NetrcParseError):
            if netrc.netrc(file.expanduser()).authenticators(host) is not None:
                return True
    return False


def check_servers(config: WebRLConfig) -> Check:
    """Look for the program that the inference servers run."""
    if config.inference_backend != "sglang":
        return Check("servers", True, "embedded ones come with webrl")
    found = check_package("sglang")
    fix = "Install it with: pip install 'webrl[sglang]', or set inference.backend=embedded."
    return Check("servers", found.is_ok, f"sglang is {found.detail}", fix)


def check_cluster(config: WebRLConfig) -> Check:
    """Look for the machines and GPUs that the configuration counts on, where no cluster is joined."""
    cluster = config.cluster
    if os.environ.get("RAY_ADDRESS"):
        return Check("cluster", True, "the one at RAY_ADDRESS")
    if cluster.n_nodes > 1:
        fix = "Start Ray on every node and set RAY_ADDRESS, or lower cluster.n_nodes."
        return Check("cluster", False, f"cluster.n_nodes is {cluster.n_nodes}, this is one", fix)
    if cluster.num_gpus == 0:
        return Check("cluster", True, "no GPU is asked for")
    found = check_gpu()
    count = int(found.detail.split(" x ")[0]) if " x " in found.detail else 0
    detail = f"cluster.n_gpus_per_node is {cluster.n_gpus_per_node}, torch sees {count}"
    fix = "Run it where they are, or lower cluster.n_gpus_per_node and allocation_mode."
    return Check("cluster", count >= cluster.num_gpus, detail, fix)


def check_memory(config: WebRLConfig) -> Check:
    """Look whether a GPU holds what a rank keeps there; what is only likely too much is logged."""
    certain, likely = find_shortages(config)
    for text in likely:
        logger.warning("%s", text)
    fix = (
        "Set actor.optimizer.offload, name a vision tower in actor.frozen_modules, use "
        "actor.gradient_checkpointing, more ranks, or t in allocation_mode for servers."
    )
    return Check("memory", not certain, "; ".join(certain) or "enough", fix)


def run_checks(config: WebRLConfig, *, is_resumed: bool) -> list[Check]:
    """Look at everything that a run of `config` needs before it starts.

    Args:
        config: Its `run_dir` filled in.
        is_resumed: Whether the run goes on in a folder that holds one already.
    """
    run_dir = Path(config.run_dir)
    checks = [
        check_run_dir(run_dir, is_resumed=is_resumed),
        check_disk(run_dir, checkpoint_bytes(config) + LOG_BYTES),
        check_policy(config.policy.path),
        check_cluster(config),
        check_memory(config),
        *_episode_checks(config),
    ]
    if config.inference.base_port:
        servers = config.allocation.role("rollout").dims.d + config.num_test_servers
        checks.append(check_ports(config.inference.base_port, servers))
    return [*checks, check_tracker(config.logging.tracker)]


def _episode_checks(config: WebRLConfig) -> list[Check]:
    """Look at what every episode needs, in training and in evaluation."""
    return [
        check_servers(config),
        check_browsers(config),
        check_miniwob(),
        check_tasks(config),
        check_judge(config),
        check_proxy(config),
    ]


def preflight_evaluation(config: WebRLConfig) -> None:
    """Refuse an evaluation that can not end well.

    Raises:
        PreflightError: Something is missing; every problem is one line with its fix.
    """
    _refuse(_episode_checks(config))


def _refuse(checks: Sequence[Check]) -> None:
    failed = [check for check in checks if not check.is_ok]
    if failed:
        raise PreflightError("\n".join(problem_text(check) for check in failed))


def preflight(config: WebRLConfig, *, is_resumed: bool) -> None:
    """Refuse to start what can not end well.

    Args:
        config: Its `run_dir` filled in.
        is_resumed: Whether the run goes on in a folder that holds one already.

    Raises:
        PreflightError: Something is missing; every problem is one line with its fix.
        ConfigError: There are fewer tasks to train on than one batch takes.
    """
    _refuse(run_checks(config, is_resumed=is_resumed))
    check_enough_tasks(config)


def problem_text(check: Check) -> str:
    """Return a failed check as one line: what is wrong, and the fix."""
    end = "" if check.detail.endswith((".", "?")) else "."
    return f"{check.name}: {check.detail}{end} {check.fix}".rstrip()


def check_enough_tasks(config: WebRLConfig) -> None:
    """Refuse fewer tasks to train on than one batch takes; they must be known.

    Raises:
        ConfigError: There are too few.
    """
    num_groups = sum(
        config.env.num_train_seeds if task.is_seeded else 1 for task in train_tasks(config)
    )
    check_dataset_size(config, num_groups)
