"""Variables that a user gives the processes of a role, written `NAME=value`.

Invariant: no value is ever shown. Those of a configuration are printed and kept with the run, so
names that look like secrets are refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from webrl.config.rules import breach
from webrl.errors import Problem

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS)(_|$)", re.IGNORECASE)
VARIABLES_OF_A_RUN = {
    "OMP_NUM_THREADS": "Use num_threads of the same section.",
    "CUDA_VISIBLE_DEVICES": "Ray sets it; use allocation_mode and cluster.n_gpus_per_node.",
    "NCCL_CUMEM_ENABLE": "It must be the same in ranks and servers, which the run sees to.",
    "SGLANG_VLM_CACHE_SIZE_MB": "Features of images would outlive updates; the run turns it off.",
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "Paused servers must answer; the run turns it off.",
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "A death must be seen at once; the run turns it off.",
    "RANK": "The run numbers its ranks.",
    "WORLD_SIZE": "The run counts its ranks.",
}
"""Variables that the run sets itself, and what to do instead."""


def parse_variables(entries: Sequence[str]) -> dict[str, str]:
    """Return value by name of checked entries."""
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


def variable_problems(entries: Sequence[str]) -> list[Problem]:
    """Return what is wrong with the entries of a key `env_vars`, without any value in it."""
    problems: list[Problem] = []
    seen: set[str] = set()
    for entry in entries:
        name, equals, value = entry.partition("=")
        remedy = "Write e.g. NCCL_DEBUG=INFO."
        if not equals or not _NAME.fullmatch(name) or "\0" in value:
            # What stands here may be a secret: it is not repeated.
            rule, shown = "texts written NAME=value", f"another one of {len(entry)} characters"
            problems.append(breach("env_vars", rule, shown, remedy))
            continue
        rule = ""
        if name in seen:
            rule, remedy = "one entry for each name", "Remove the others."
        elif name in VARIABLES_OF_A_RUN:
            rule, remedy = "without variables that the run sets", VARIABLES_OF_A_RUN[name]
        elif _SECRET.search(name):
            rule = "without secrets, since configurations are printed and kept"
            remedy = "Export it where Ray is started; processes of the run inherit it."
        if rule:
            problems.append(breach("env_vars", rule, name, remedy))
        seen.add(name)
    return problems
