"""Rewards from a vision-language model behind an OpenAI-compatible server, for tasks with a rubric."""

from __future__ import annotations

from webrl.judge.agreement import Agreement, agreement, criteria_pairs, label_of
from webrl.judge.chat import ChatClient
from webrl.judge.judge import Judge
from webrl.judge.kept import JudgedEpisode, JudgedFolder, read_judged
from webrl.judge.verdict import Criterion, Evidence, JudgeUsage, Verdict

__all__ = [
    "Agreement",
    "ChatClient",
    "Criterion",
    "Evidence",
    "Judge",
    "JudgeUsage",
    "JudgedEpisode",
    "JudgedFolder",
    "Verdict",
    "agreement",
    "criteria_pairs",
    "label_of",
    "read_judged",
]
