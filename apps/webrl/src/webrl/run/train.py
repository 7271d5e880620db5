"""``run_training``: what ``webrl train`` calls once everything was checked."""

from __future__ import annotations

import asyncio
import logging
import secrets
from pathlib import Path

from awrl_pixelstore import PixelStoreUnavailable
from awrl_trainer import PublishError, latest_complete_checkpoint
from rich.console import Console

from webrl.cluster.ray_cluster import ray_cluster
from webrl.config import WebRLConfig
from webrl.errors import WorkerLostError
from webrl.launch.policy_source import ensure_policy
from webrl.records.live_view import LiveView
from webrl.records.metrics import MetricLog
from webrl.records.run_folder import RunFolders
from webrl.run.run import Run
from webrl.run.signals import until_signalled
from webrl.training.step_loop import Progress

logger = logging.getLogger(__name__)

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells use it."""


def run_training(config: WebRLConfig, *, resume: bool, console: Console) -> int:
    """Train until the configured end.

    Args:
        config: Resolved configuration.
        resume: Continue from the newest checkpoint of ``config.run_dir``.
        console: Where to draw.

    Returns:
        0, or 130 after Ctrl-C.

    Raises:
        WebRLError: The run could not start, or had to stop.
    """
    folders = RunFolders(Path(config.run_dir).resolve())
    _log_to_file(folders.root / "run.log", config.logging.level)
    log = MetricLog.open(folders.root, config.logging.tracker)
    try:
        with LiveView(console, title=str(config.run_dir)) as view:
            view.note("preparing the policy")
            policy_path = ensure_policy(config, folders.root)
            view.note("starting Ray")
            with ray_cluster(namespace=f"webrl-{secrets.token_hex(4)}"):
                progress = _run_to_its_end(config, folders, policy_path, resume, view, log)
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print(f"interrupted; continue with: webrl train --resume {config.run_dir}")
        return INTERRUPTED
    finally:
        log.close()
    _describe_end(progress, folders, console)
    return 0


def _run_to_its_end(
    config: WebRLConfig,
    folders: RunFolders,
    policy_path: Path,
    resume: bool,
    view: LiveView,
    log: MetricLog,
) -> Progress:
    """Run; when a part is lost that can't be replaced in place, go on from the newest checkpoint."""
    num_restarts, limit = 0, config.recover.max_restarts
    while True:
        run = Run(
            config,
            folders,
            policy_path,
            run_id=f"webrl-{secrets.token_hex(4)}",
            view=view,
            log=log,
            is_resumed=resume,
        )
        try:
            return asyncio.run(until_signalled(run.run()))
        except (WorkerLostError, PublishError, PixelStoreUnavailable) as error:
            if not run.has_started or num_restarts >= limit:
                raise
            num_restarts += 1
            logger.exception("the run starts again")
            first_line = str(error).partition("\n")[0]
            view.note(f"{first_line}; restart {num_restarts} of {limit} from the newest checkpoint")
            resume = latest_complete_checkpoint(folders.state) is not None


def _log_to_file(path: Path, level: str) -> None:
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def _describe_end(progress: Progress, folders: RunFolders, console: Console) -> None:
    """Print where the results are."""
    console.print(
        f"trained {progress.num_steps} batches of {progress.num_trained_episodes} episodes in "
        f"{progress.train_s:.0f} s; weight version {progress.version}"
    )
    console.print(f"  metrics       {folders.root / 'metrics.jsonl'}")
    console.print(f"  evaluations   {folders.evaluations}")
    console.print(f"  trajectories  {folders.samples}")
    console.print(f"  policy        {latest_complete_checkpoint(folders.policies)}")
