"""``run_training``: what ``webrl train`` calls once everything was checked."""

from __future__ import annotations

import asyncio
import logging
import secrets
from pathlib import Path

from rich.console import Console

from webrl.config import WebRLConfig
from webrl.system.cluster import ray_cluster
from webrl.system.live_view import LiveView
from webrl.system.metrics import MetricLog
from webrl.system.policy_source import ensure_policy
from webrl.system.run import Run, describe_end
from webrl.system.run_state import RunFolders
from webrl.system.signals import until_signalled

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
    run_id = f"webrl-{secrets.token_hex(4)}"
    log = MetricLog.open(folders.root, config.logging.tracker)
    try:
        with LiveView(console, title=str(config.run_dir)) as view:
            view.note("preparing the policy")
            policy_path = ensure_policy(config, folders.root)
            view.note("starting Ray")
            with ray_cluster(namespace=run_id):
                run = Run(
                    config,
                    folders,
                    policy_path,
                    run_id=run_id,
                    view=view,
                    log=log,
                    is_resumed=resume,
                )
                progress = asyncio.run(until_signalled(run.run()))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print(f"interrupted; continue with: webrl train --resume {config.run_dir}")
        return INTERRUPTED
    finally:
        log.close()
    describe_end(progress, folders, console)
    return 0


def _log_to_file(path: Path, level: str) -> None:
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
