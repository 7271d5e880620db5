"""No server outlives the process that started it, and no child of a server outlives the server.

Invariant: whatever ends one of them, a kill included, what hangs on it ends too. Pipes tell, because
an end that only one process holds closes with it. The kernel's parent-death signal would come when
the starting *thread* ends, and would need a hook between fork and exec, which is unsafe where
threads run.
"""

from __future__ import annotations

import os
import select
import signal

_STANDARD_INPUT = 0


def end_group_with(*, starter: bool) -> None:
    """Leave a small process that kills this one's group once this process is gone.

    The process leads a group of its own from now on. Call this first: it forks, so there must be no
    threads and nothing large in memory yet.

    Args:
        starter: Also end when standard input closes, a pipe whose other end the starter holds.
    """
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    reading, writing = os.pipe()
    if os.fork():
        # The writing end stays open, in this process alone, as long as it lives.
        os.close(reading)
        return
    os.close(writing)
    _let_go_of_outputs()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    select.select([reading, _STANDARD_INPUT] if starter else [reading], [], [])
    os.killpg(0, signal.SIGKILL)


def _let_go_of_outputs() -> None:
    """Keep no log or terminal open: whoever reads them waits for their last writer."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        os.dup2(nothing, output)
