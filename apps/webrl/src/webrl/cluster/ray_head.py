"""`python -m webrl.cluster.ray_head`: a local Ray cluster in a session of its own.

What is sent to the process group of a run (Ctrl-C in a terminal, `timeout`, batch systems, service
managers) does not reach its cluster, so the run can save before the cluster ends. The cluster ends
with whoever started it: its standard input is a pipe whose other end the starter holds.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from types import FrameType

from webrl.errors import PreflightError
from webrl.lifeline import end_group_with

START_DEADLINE_S = 120.0
"""Ray gives up after half a minute by itself; importing it takes a while on a busy laptop."""

END_DEADLINE_S = 10.0
"""For an orderly end; what is left then is killed."""


class RayHead:
    """A running local cluster.

    Args:
        settings: Of `ray.init`, as JSON values.
        environment: Added to this process's.
    """

    def __init__(self, settings: Mapping[str, object], environment: Mapping[str, str]) -> None:
        """Start it, and return once it can be joined.

        Raises:
            PreflightError: It did not start.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ray's own processes write to files of their session; nothing may keep a terminal open.
            stderr=subprocess.DEVNULL,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        try:
            self.address = self._await_address()
        except BaseException:  # an interrupt too: nothing may be left behind
            self.close()
            raise

    def _await_address(self) -> str:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], START_DEADLINE_S)[0]:
            raise PreflightError(f"Ray must start within {START_DEADLINE_S:g} s, got no answer.")
        answer = json.loads(self._process.stdout.readline() or b"{}")
        if "address" not in answer:
            reason = answer.get("error") or f"it ended with code {self._process.wait()}"
            raise PreflightError(f"Ray must start, got: {reason}")
        return str(answer["address"])

    def close(self) -> None:
        """End the cluster; harmless when it is gone."""
        self._process.terminate()
        try:
            self._process.wait(END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def main(words: list[str]) -> int:
    """Start the cluster, print its address as JSON, and end it with SIGTERM or the starter."""
    end_group_with(starter=True)
    # Imported after the fork, and slow.
    import ray  # noqa: PLC0415

    try:
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            **json.loads(words[0]),
        )
    except Exception as error:  # noqa: BLE001 - Ray raises the base class; the starter says it
        _answer({"error": str(error)})
        return 1
    signal.signal(signal.SIGTERM, _leave)
    _answer({"address": ray.get_runtime_context().gcs_address})
    try:
        while True:
            time.sleep(3600.0)
    finally:
        ray.shutdown()


def _answer(values: Mapping[str, str]) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
