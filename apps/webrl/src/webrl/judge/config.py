"""Where the judge is, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["JudgeConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeConfig:
    """One judge. Plain data without secrets: the key is read from the environment when needed."""

    url: str
    """Base address of the server, such as `http://127.0.0.1:8000/v1`."""
    model: str
    """Name of the model there."""
    api_key_env: str | None = None
    """Environment variable that holds the key; `None` for a server that asks for none."""
    deadline_s: float = 120.0
    """Limit for the verdict on one episode, retries included, in seconds."""
    request_timeout_s: float = 60.0
    """Limit for one request, in seconds."""
    max_retries: int = 3
    """Requests after a first one that failed or was not answered in form."""
    max_concurrent: int = 8
    """Requests under way at one moment."""
    max_screenshots: int = 16
    """Screenshots of one request; of more the judge first picks the relevant ones."""
    max_answer_tokens: int | None = 1024
    """Most tokens of one answer, the reasoning in it included; `None` sends no limit."""
    token_limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the server calls that limit."""
    temperature: float | None = 0.0
    """Sampling temperature; `None` sends none, as reasoning models refuse it."""
    max_cached: int = 10_000
    """Answers kept, by the content of their request."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ValueError: a value is out of its range.
        """
        for name in ("deadline_s", "request_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}. Typical: 60.")
        for name in ("max_concurrent", "max_screenshots", "max_answer_tokens", "max_cached"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}. Raise it.")
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise ValueError(f"temperature must be in [0, 2], got {self.temperature}. Use 0.")
        if self.max_retries < 0:
            raise ValueError(f"max_retries must be >= 0, got {self.max_retries}. Use 0 for none.")
