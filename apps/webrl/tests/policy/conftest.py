from __future__ import annotations

from pathlib import Path

import pytest
from webrl.policy import InitPolicyConfig, PolicyProcessor, WarmupConfig, init_policy


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("policy")
    init_policy(out, InitPolicyConfig(warmup=WarmupConfig(num_updates=0)))
    return out


@pytest.fixture(scope="session")
def processor(checkpoint: Path) -> PolicyProcessor:
    return PolicyProcessor.from_pretrained(checkpoint)
