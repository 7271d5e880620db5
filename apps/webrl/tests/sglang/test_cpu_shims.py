"""The shims of SGLang on a CPU: what is written, and that the loader and torch take it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from webrl.errors import ServerStartError
from webrl.servers.sglang_cpu import build_cpu_shims, has_gpu_driver
from webrl.servers.sglang_cpu.elf import shared_library, undefined_symbols

KERNEL = """
#include <stddef.h>
int cuGetErrorString(int code); int cuCtxCreate_v2(void); int cudaFree(void *p);
int init(void) { return cuGetErrorString(1) + cuCtxCreate_v2() + cudaFree(NULL); }
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An SGLang reduced to what the shims are read off: kernels, and sources that name operators."""
    root = tmp_path / "site"
    for package in ("sglang", "sgl_kernel"):
        (root / package / "deep").mkdir(parents=True)
        (root / package / "__init__.py").write_text("")
    (root / "sglang" / "deep" / "layer.py").write_text(
        "import torch\nrope = torch.ops.sgl_kernel.rope_cpu\nnorm = torch.ops.sgl_kernel.norm\n"
    )
    source = root / "kernel.c"
    source.write_text(KERNEL)
    library = root / "sgl_kernel" / "deep" / "common_ops.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.syspath_prepend(str(root))
    return root


needs_compiler = pytest.mark.skipif(
    not any((Path(folder) / "cc").exists() for folder in os.get_exec_path()),
    reason="no C compiler to make a library that needs a driver",
)
without_driver = pytest.mark.skipif(has_gpu_driver(), reason="this machine has a CUDA driver")


def run_python(code: str, environment: dict[str, str]) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout


def test_a_written_library_is_loaded_and_each_function_says_that_there_is_no_device(
    tmp_path: Path,
) -> None:
    names = ["cuInit", *(f"cuFunction{index}" for index in range(40))]
    path = tmp_path / "libnothing.so.1"
    path.write_bytes(shared_library("libnothing.so.1", names))
    code = f"import ctypes; lib = ctypes.CDLL({str(path)!r})\n"
    code += f"print({{lib[name]() for name in {names!r}}}, hasattr(lib, 'cuOther'))"
    assert run_python(code, {}).split() == ["{100}", "False"]
    assert undefined_symbols(path) == []


def test_undefined_symbols_are_those_that_others_define() -> None:
    names = undefined_symbols(Path(torch.__file__).parent / "lib" / "libtorch_python.so")
    assert "PyErr_SetString" in names
    assert not any(name.startswith("THPVariable_Wrap") for name in names)


@needs_compiler
@without_driver
def test_the_shims_let_kernels_load_and_operators_be_looked_up_in_the_servers_process_only(
    installed: Path, tmp_path: Path
) -> None:
    before = dict(os.environ)
    environment = dict(build_cpu_shims(tmp_path / "shims"))
    assert dict(os.environ) == before
    assert environment["SGLANG_USE_CPU_ENGINE"] == "1"
    assert "SGLANG_CPU_OMP_THREADS_BIND" not in environment
    of_two = build_cpu_shims(tmp_path / "shims", tp_size=2)["SGLANG_CPU_OMP_THREADS_BIND"]
    cores = [int(core) for part in of_two.split("|") for core in part.split(",")]
    assert of_two.count("|") == 1
    assert set(cores) <= os.sched_getaffinity(0)
    library = installed / "sgl_kernel" / "deep" / "common_ops.so"
    code = "import ctypes, torch; print(ctypes.CDLL('libcuda.so.1').cuCtxCreate_v2())\n"
    code += f"ctypes.CDLL({str(library)!r}, mode=1)\n"
    code += "print(torch.ops.sgl_kernel.rope_cpu, hasattr(torch.ops.sgl_kernel, 'norm'))"
    assert run_python(code, environment).split() == ["100", "sgl_kernel.rope_cpu", "False"]
    assert "cudaFree" not in (tmp_path / "shims" / "libcuda.so.1").read_bytes().decode("latin1")
    with pytest.raises(subprocess.CalledProcessError):
        run_python("import ctypes; ctypes.CDLL('libcuda.so.1')", {})


@without_driver
def test_without_sglang_the_message_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.setattr(
        sys, "meta_path", [finder for finder in sys.meta_path if isinstance(finder, type)]
    )
    with pytest.raises(ServerStartError, match=r"pip install 'webrl\[sglang\]'"):
        build_cpu_shims(tmp_path / "shims")
    assert not (tmp_path / "shims").exists()
