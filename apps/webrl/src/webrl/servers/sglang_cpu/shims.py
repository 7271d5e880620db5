"""Builds the shims of a real SGLang server on a machine without a GPU.

Invariants:

* Nothing is built where a driver is found, and nothing outside the given folder is written.
* The shims work through the server's environment alone: this process is not touched.
* What to export and what to declare is read off the SGLang that is installed.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path

from webrl.errors import ServerStartError
from webrl.servers.sglang_cpu.elf import shared_library, undefined_symbols

CPU_ARGUMENTS = (
    *("--device", "cpu"),
    *("--attention-backend", "torch_native"),
    *("--sampling-backend", "pytorch"),
    *("--mm-attention-backend", "sdpa"),
    *("--grammar-backend", "none"),
    *("--mem-fraction-static", "0.2"),
    *("--max-total-tokens", "20000"),
    "--disable-cuda-graph",
    "--disable-overlap-schedule",
    "--sleep-on-idle",
)
"""Arguments of a server on a CPU; of an argument given twice, the last one counts."""

_DRIVER = "libcuda.so.1"
_DRIVER_SYMBOL = re.compile("cu[A-Z]")
_OPERATOR = re.compile(rb"torch\.ops\.sgl_kernel\.(\w+_cpu)\b")

_STARTUP = '''\
"""Declares operators that SGLang looks up at import and its wheel lacks on a CPU; none is called.

Its checksums of weights wait for a GPU first: here there is nothing to wait for.
"""
import sys

# Python's resource tracker needs no torch.
if not any("resource_tracker" in word for word in sys.orig_argv):
    import torch

    library = torch.library.Library("sgl_kernel", "FRAGMENT")
    for name in {names}:
        library.define(name + "() -> ()")
    torch.cuda.synchronize = lambda device=None: None
'''


def has_gpu_driver() -> bool:
    """Return whether this machine has a CUDA driver."""
    if Path("/proc/driver/nvidia").exists():
        return True
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return False
    return True


def build_cpu_shims(folder: Path, *, tp_size: int = 1) -> Mapping[str, str]:
    """Write the shims and return what the server's environment gets.

    Args:
        folder: Receives the files; several servers may share it.
        tp_size: Tensor-parallel size of the server.

    Raises:
        ServerStartError: SGLang is not installed, or the machine has a driver or is of no known
            kind.
    """
    if has_gpu_driver():
        raise ServerStartError(
            "the CPU shims of SGLang must not meet a CUDA driver, got one. Start SGLang as it is."
        )
    kernels, sources = _installed("sgl_kernel"), _installed("sglang")
    wanted = {
        symbol
        for library in kernels.rglob("*.so")
        for symbol in undefined_symbols(library)
        if _DRIVER_SYMBOL.match(symbol)
    }
    operators = {
        name.decode()
        for source in sources.rglob("*.py")
        for name in _OPERATOR.findall(source.read_bytes())
    }
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / _DRIVER, shared_library(_DRIVER, sorted(wanted)))
    _write(folder / "sitecustomize.py", _STARTUP.format(names=sorted(operators)).encode())
    return {
        "SGLANG_USE_CPU_ENGINE": "1",
        "LD_LIBRARY_PATH": _prepended(folder, "LD_LIBRARY_PATH"),
        "PYTHONPATH": _prepended(folder, "PYTHONPATH"),
        **(_several_ranks(folder, tp_size) if tp_size > 1 else {}),
    }


def _several_ranks(folder: Path, tp_size: int) -> Mapping[str, str]:
    """Return what tensor parallel ranks need: SGLang wants a NUMA node for each, and NCCL, else."""
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // tp_size)
    parts = [
        ",".join(str(cores[(rank * share + index) % len(cores)]) for index in range(share))
        for rank in range(tp_size)
    ]
    return {
        "SGLANG_CPU_OMP_THREADS_BIND": "|".join(parts),
        # Not there: what can not be loaded is not used.
        "SGLANG_NCCL_SO_PATH": str(folder / "libnccl.so"),
    }


def _installed(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ServerStartError(
            f"package {package!r} must be installed for the sglang backend, got none. "
            "Run: pip install 'webrl[sglang]'."
        )
    return Path(spec.origin).parent


def _write(path: Path, content: bytes) -> None:
    """Replace the file as a whole: another server may be reading it."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_bytes(content)
    new.replace(path)


def _prepended(folder: Path, variable: str) -> str:
    rest = os.environ.get(variable)
    return f"{folder}{os.pathsep}{rest}" if rest else str(folder)
