"""What a real SGLang server needs on a machine without a GPU, in the server's process only.

The published wheel of SGLang runs on plain CPUs with three shims: a stand-in for the driver's
`libcuda.so.1`, empty declarations of the operators that the wheel lacks, and CPU arguments.
"""

from __future__ import annotations

from webrl.servers.sglang_cpu.shims import CPU_ARGUMENTS, build_cpu_shims, has_gpu_driver

__all__ = ["CPU_ARGUMENTS", "build_cpu_shims", "has_gpu_driver"]
