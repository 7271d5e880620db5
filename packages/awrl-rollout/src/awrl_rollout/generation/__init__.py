"""Generation that outlives weight updates, over one inference server or several."""

from __future__ import annotations

from awrl_rollout.generation.assignment import EpisodeAssignment
from awrl_rollout.generation.generator import InterruptibleGenerator
from awrl_rollout.generation.protocol import GenerateClient, GenerateRequest, GenerateResult
from awrl_rollout.generation.router import StickyRouter

__all__ = [
    "EpisodeAssignment",
    "GenerateClient",
    "GenerateRequest",
    "GenerateResult",
    "InterruptibleGenerator",
    "StickyRouter",
]
