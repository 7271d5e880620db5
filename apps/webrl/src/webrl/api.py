"""Training and evaluation from Python: what `webrl train` and `webrl eval` do, without a command line.

    import webrl

    folder = webrl.train(webrl.load_config("laptop", ["total_steps=20"]))
    result = webrl.evaluate(webrl.load_config(str(folder / "config.toml")), folder / "policy")

Both block until they are done, also in a notebook, where they work in a thread of their own: bound a
run there by `total_steps` or `time_limit_s`, as no signal reaches it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console

from webrl.config import LoadedConfig, config_warnings, resolve_run_dir
from webrl.errors import PolicyError
from webrl.launch.run_tasks import bad_rows
from webrl.machine_check import preflight, preflight_evaluation

if TYPE_CHECKING:
    from webrl.evaluation.statistics import EvaluationResult

ResultT = TypeVar("ResultT")
NUM_SEEDS = 512
"""Seeds of an evaluation unless told: its 95 % interval is at most 9 points wide."""


def train(loaded: LoadedConfig, *, resume: bool = False, console: Console | None = None) -> Path:
    """Train until the configured end, and return the run's folder.

    Args:
        loaded: What `load_config` returned; for a resume, of the run's own `config.toml`.
        resume: Whether the run goes on from the newest checkpoint of `run_dir`.
        console: Where to draw; standard output when None.

    Raises:
        KeyboardInterrupt: A signal ended the run; it can be resumed.
        WebRLError: The run could not start, or had to stop.
    """
    loaded = resolve_run_dir(loaded, datetime.now())
    if start(loaded, resume=resume, console=console or _console()) != 0:
        raise KeyboardInterrupt
    return Path(loaded.config.run_dir)


def _console() -> Console:
    return Console(soft_wrap=True, highlight=False, markup=False, emoji=False)


def start(loaded: LoadedConfig, *, resume: bool, console: Console) -> int:
    """Check everything that can be checked beforehand, train, and return an exit code.

    Args:
        loaded: Its `run_dir` filled in.

    Raises:
        WebRLError: The run could not start, or had to stop.
    """
    config = loaded.config
    preflight(config, is_resumed=resume)
    for warning in (*config_warnings(config), *bad_rows(config)):
        console.print(f"warning: {warning}")
    # Ray, torch and transformers take seconds to import: only a real run pays for them.
    from webrl.run.run import run_training  # noqa: PLC0415

    return outside_of_loops(lambda: run_training(config, resume=resume, console=console))


def evaluate(
    loaded: LoadedConfig, policy: Path, *, version: int = 0, num_seeds: int = NUM_SEEDS
) -> EvaluationResult:
    """Return the success of a checkpoint on held-out seeds.

    Args:
        loaded: What `load_config` returned; its tasks, servers and browsers are used.
        policy: Checkpoint folder.
        version: Its weight version, for the result.
        num_seeds: Held-out seeds, spread over the tasks; 0 takes every task once.

    Raises:
        PolicyError: The folder holds no checkpoint.
        WebRLError: The evaluation could not start, or had to stop.
    """
    if not (policy / "config.json").is_file():
        raise PolicyError(
            f"policy must be a folder with a config.json, got {str(policy)!r}. "
            "Give e.g. runs/NAME/checkpoints/policy/version_20."
        )
    preflight_evaluation(loaded.config)
    # Ray, torch and transformers take seconds to import: only a real evaluation pays for them.
    from webrl.evaluation.run_evaluation import PolicyCheckpoint  # noqa: PLC0415
    from webrl.evaluation.standalone import evaluate_checkpoint  # noqa: PLC0415

    checkpoint = PolicyCheckpoint(path=policy, version=version)
    return outside_of_loops(
        lambda: evaluate_checkpoint(
            loaded.config, checkpoint, num_seeds=num_seeds, log_dir=Path("runs/eval")
        )
    )


def outside_of_loops(work: Callable[[], ResultT]) -> ResultT:
    """Return what `work` returns; where an event loop runs, as in a notebook, it has a thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="webrl") as pool:
        return pool.submit(work).result()
