"""Starts a real SGLang as a run does, and runs `webrl doctor --url` against it.

    python benchmarks/one_gpu/parity.py POLICY [--dtype bfloat16] [--log-dir DIR] [--args "..."]

The exit code is that of the doctor. Without a GPU the server runs on SGLang's CPU engine.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import time
from pathlib import Path

from webrl.cli import main as webrl
from webrl.servers.server_actor import InferenceServer, ServerSpec


def main() -> int:
    """Start, compare, stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("policy", type=Path)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--log-dir", type=Path, default=Path("runs/parity"))
    parser.add_argument("--args", default="", help="further arguments of the server")
    parser.add_argument("--start-s", type=float, default=600.0)
    options = parser.parse_args()
    spec = ServerSpec(
        backend="sglang",
        model_path=str(options.policy.absolute()),
        start_timeout_s=options.start_s,
        extra_args=("--dtype", options.dtype, *shlex.split(options.args)),
    )
    server = InferenceServer(spec, 0, "parity", str(options.log_dir))
    start = time.perf_counter()
    try:
        url = asyncio.run(server.start())
        print(f"server answered its first request after {time.perf_counter() - start:.0f} s")
        return webrl(["doctor", "--url", url])
    finally:
        server.stop()


if __name__ == "__main__":
    raise SystemExit(main())
