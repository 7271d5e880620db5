"""The agent: what a policy is told, and what its replies mean."""

from __future__ import annotations

from webrl.agent.readers import read_direct, read_reasoning, read_tool_call
from webrl.agent.reply import Decision

__all__ = [
    "Decision",
    "read_direct",
    "read_reasoning",
    "read_tool_call",
]
