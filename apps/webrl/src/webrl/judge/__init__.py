"""Rewards from a vision-language model behind an OpenAI-compatible server, for tasks with a rubric."""

from __future__ import annotations

from webrl.judge.chat import ChatClient
from webrl.judge.judge import Judge
from webrl.judge.verdict import Criterion, Evidence, JudgeUsage, Verdict

__all__ = ["ChatClient", "Criterion", "Evidence", "Judge", "JudgeUsage", "Verdict"]
