"""The client of an inference server that speaks SGLang's HTTP."""

from __future__ import annotations

from awrl_rollout.sglang.client import SGLangClient
from awrl_rollout.sglang.transport import PauseMode, SGLangClientConfig
from awrl_rollout.sglang.wire import WeightBucket

__all__ = ["PauseMode", "SGLangClient", "SGLangClientConfig", "WeightBucket"]
