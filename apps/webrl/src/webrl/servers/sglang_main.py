"""`python -m webrl.servers.sglang_main ARGUMENTS`: SGLang's own server, its key taken from the environment.

As `--api-key` it could be read by everyone on the machine, and SGLang writes all its arguments into
its log. Without a key this is `python -m sglang.launch_server`. With one, SGLang 0.5.16 asks for it
on every route but `/health` and `/metrics`.

Invariant: whatever ends this process, its group ends with it. SGLang's detokenizer outlives a kill.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys

from webrl.embedded.config import TOKEN_VARIABLE
from webrl.hidden_text import HiddenText

__all__ = ["end_group_with_me", "main"]


def end_group_with_me() -> None:
    """Leave a small process that kills this one's group when it is gone, however it ended.

    Does nothing in a process that leads no group: that group is somebody else's. Call it first: it
    forks, so there must be no threads and nothing large in memory yet.
    """
    if os.getpgrp() != os.getpid():
        return
    reading, writing = os.pipe()
    if os.fork():
        # The other end stays open, in this process alone, as long as it lives.
        os.close(reading)
        return
    os.close(writing)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.read(reading, 1)
    os.killpg(0, signal.SIGKILL)


def main(arguments: list[str]) -> None:
    """Serve until the process is told to end."""
    # By name: SGLang is an extra, which most environments lack.
    launcher = importlib.import_module("sglang.launch_server")
    importlib.import_module("sglang.srt.plugins").load_plugins()
    settings = launcher.prepare_server_args(arguments)
    token = os.environ.get(TOKEN_VARIABLE)
    if token:
        settings.api_key = HiddenText(token)
    try:
        launcher.run_server(settings)
    finally:
        launcher.kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    end_group_with_me()
    main(sys.argv[1:])
