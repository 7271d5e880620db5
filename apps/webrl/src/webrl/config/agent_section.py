"""Section of the configuration: the agent, what a policy is told and how its replies are read.

The text beneath a field is what the key's documentation says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from webrl.config.rules import Count, Natural, Section, breach
from webrl.errors import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class HistorySection(Section):
    """How much of what it did a policy is told; of more, what fits the prompt."""

    num_actions: Annotated[Natural, "Use 0 for none."] | None = None
    """Newest actions that a prompt tells, each with what came of it; all that fit when unset."""
    num_thoughts: Annotated[Natural, "Use 0 for none."] = 3
    """Newest actions whose thoughts are told too."""
    memory_chars: Annotated[Natural, "Use 0 for no memory."] = 2000
    """Characters of its memory that `reasoning` keeps and tells."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentSection(Section):
    """What a policy is told, and how its replies are read."""

    format: Literal["direct", "reasoning", "tool_call"] = "direct"
    """Form of a reply: one action and nothing else; thought, memory and action in sections; or a call
    of Qwen's tools in the checkpoint's own chat template."""
    history: HistorySection = field(default_factory=HistorySection)
    """How much of what it did a policy is told."""
    images: Annotated[Count, "The policy needs a screenshot."] = 1
    """Screenshots in one prompt: the newest and the ones before it."""
    thinking: Literal["on", "off", "model"] = "model"
    """What the chat template is told of `enable_thinking`; `model` tells it nothing. A `<think>` block
    is never part of a later prompt."""
    max_prompt_tokens: Annotated[int, Meta(ge=64), "Typical value: 8192."] | None = None
    """Most tokens of a prompt, those of screenshots included; what `inference.context_length` leaves
    beside the answer when unset."""
    max_pixels: Annotated[int, Meta(ge=1024), "Typical value: 921600."] | None = None
    """Pixels above which a screenshot is made smaller, before anyone sees it: policy, trainer and judge
    get the same bytes; as large as the page when unset."""
    invalid_limit: Annotated[Count, "Leave it out for none."] | None = None
    """Replies without an action, one after another, that end an episode as a failure; none when unset."""
    format_penalty: Annotated[float, Meta(ge=0, lt=1), "Use 0 for none."] = 0.0
    """Taken from an episode's reward, times the share of its replies that are not in the form that was
    asked for; a reply without an action never is. A success keeps a reward above 0."""
    truncated_penalty: Annotated[float, Meta(ge=0, lt=1), "Use 0 for none."] = 0.0
    """The same for the share of its replies that `gconfig.max_new_tokens` cut."""
    train_truncated: bool = True
    """Whether replies that were cut are trained on."""

    def contradictions(self) -> list[Problem]:
        """Both penalties together leave a success above every failure."""
        total = self.format_penalty + self.truncated_penalty
        if total < 1:
            return []
        rule = "< 1 together with truncated_penalty"
        return [breach("format_penalty", rule, total, "Lower one of them.")]
