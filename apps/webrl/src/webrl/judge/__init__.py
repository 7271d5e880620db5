"""Rewards from a vision-language model behind an OpenAI-compatible server, for tasks with a rubric."""

from webrl.judge.chat import ChatClient, Question
from webrl.judge.config import JudgeConfig
from webrl.judge.errors import JudgeError
from webrl.judge.judge import Judge
from webrl.judge.verdict import Criterion, Evidence, Verdict

__all__ = [
    "ChatClient",
    "Criterion",
    "Evidence",
    "Judge",
    "JudgeConfig",
    "JudgeError",
    "Question",
    "Verdict",
]
