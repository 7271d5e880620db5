"""Settings of all benchmarks."""

from __future__ import annotations

import os

# Read when Ray is imported: under `uv run` it would pack the working directory and start each worker
# through `uv run`, which takes minutes and is not what is measured.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
