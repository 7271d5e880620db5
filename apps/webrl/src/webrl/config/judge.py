"""Section `judge`: who judges the episodes of tasks with a rubric."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from webrl.config.rules import Rules
from webrl.loopback import is_loopback

__all__ = ["JudgeSection"]

_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
"""Capitals only: a key that was pasted here by mistake is no such name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeSection:
    """A vision-language model behind an OpenAI-compatible server, for `webgym:PATH` tasks."""

    url: str | None = None
    """Base address of the server, such as `https://api.example/v1`; no judge when unset."""
    model: str | None = None
    """Name of the model there; must be set with `judge.url`."""
    api_key_env: str | None = None
    """Name of the environment variable with the key, on every machine with rollout workers; no key
    is sent when unset."""
    deadline_s: float = 120.0
    """Limit for one verdict, retries included, in seconds; past it the episode is a fault."""
    request_timeout_s: float = 60.0
    """Limit for one request, in seconds."""
    max_retries: int = 3
    """Requests after one that failed or was not answered in form."""
    max_concurrent: int = 8
    """Requests of one rollout worker at one moment."""
    max_screenshots: int = 16
    """Screenshots of one request; of more the model first picks the relevant ones."""
    max_answer_tokens: int | None = 1024
    """Most tokens of one answer, the reasoning in it included; no limit is sent when `none`."""
    token_limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the server calls that limit: reasoning models of some providers want the longer name."""
    temperature: float | None = 0.0
    """Sampling temperature; none is sent when `none`, as some reasoning models refuse it."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value is out of its range.
        """
        rules = Rules()
        self._check_server(rules)
        rules.above("deadline_s", self.deadline_s, 0, "Typical value: 120.")
        rules.above("request_timeout_s", self.request_timeout_s, 0, "Typical value: 60.")
        rules.at_least("max_retries", self.max_retries, 0, "Use 0 for none.")
        rules.at_least("max_concurrent", self.max_concurrent, 1, "Typical value: 8.")
        rules.at_least("max_screenshots", self.max_screenshots, 1, "Typical value: 16.")
        rules.at_least("max_answer_tokens", self.max_answer_tokens, 1, "Typical value: 1024.")
        rules.one_of(
            "token_limit_field", self.token_limit_field, ("max_tokens", "max_completion_tokens")
        )
        if self.temperature is not None:
            rules.within("temperature", self.temperature, 0, 2, "Use 0, or none to send none.")
        rules.finish()

    def _check_server(self, rules: Rules) -> None:
        name = self.api_key_env
        if name is not None and not _VARIABLE.fullmatch(name):
            # What stands here may be the key itself: it is not repeated.
            rule, fix = "the name of an environment variable", "Use e.g. JUDGE_API_KEY."
            rules.require(False, "api_key_env", rule, f"{len(name)} other characters", fix)
        if self.url is None:
            return
        rules.require(
            bool(self.model and self.model.strip()),
            "model",
            "set together with judge.url",
            self.model,
            "Name a model of the server that reads images.",
        )
        problem = _address_problem(self.url, has_key=name is not None)
        if problem is not None:
            rule, shown = problem
            rules.require(False, "url", rule, shown, "Use e.g. https://api.example/v1.")


def _address_problem(url: str, *, has_key: bool) -> tuple[str, str] | None:
    """Return the rule that an address breaks, and how to show it without a secret."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "a well-formed address", "something else"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "an address with http:// or https://", "something else"
    if parts.username is not None or parts.password is not None or parts.query:
        return "an address without user, password or query (use api_key_env)", parts.hostname
    if has_key and parts.scheme == "http" and not is_loopback(parts.hostname):
        return "https:// where a key is sent to another machine", f"http://{parts.hostname}"
    return None
