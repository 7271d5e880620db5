"""Which agent a configuration asks for, and whether a checkpoint can be one."""

from __future__ import annotations

from webrl.actions import ActionMode
from webrl.agent.direct import DirectAgent
from webrl.agent.protocol import Agent, ChatTokens
from webrl.agent.reasoning import ReasoningAgent
from webrl.agent.tool_call import ToolCallAgent
from webrl.agent.tools import tool_schemas
from webrl.config import AgentSection
from webrl.errors import ConfigError, Problem

_PROBE = [
    {"role": "system", "content": [{"type": "text", "text": "s"}]},
    {"role": "user", "content": [{"type": "text", "text": "u"}]},
]


def make_agent(
    section: AgentSection,
    tokens: ChatTokens,
    *,
    mode: ActionMode = "coordinates",
    max_tokens: int | None = None,
) -> Agent:
    """Return the agent of a configuration.

    Args:
        mode: How an action says where.
        max_tokens: What the context leaves for a prompt; None for no bound.
    """
    bounds = [bound for bound in (max_tokens, section.max_prompt_tokens) if bound is not None]
    room = min(bounds, default=None)
    if section.format == "direct":
        return DirectAgent(section, tokens, mode=mode, max_tokens=room)
    kind = ReasoningAgent if section.format == "reasoning" else ToolCallAgent
    is_thinking = opens_thinking(section, tokens)
    return kind(section, tokens, mode=mode, max_tokens=room, is_thinking=is_thinking)


def opens_thinking(section: AgentSection, tokens: ChatTokens) -> bool:
    """Return whether the checkpoint's chat template begins the reply with `<think>`."""
    text = tokens.chat_text(_PROBE, thinking=section.thinking).rstrip()
    return text.endswith("<think>")


def check_agent(section: AgentSection, tokens: ChatTokens) -> None:
    """Refuse an agent that the checkpoint's chat template cannot speak.

    Raises:
        ConfigError: The template has no tools, or knows no `enable_thinking`.
    """
    problems: list[Problem] = []
    if section.format == "tool_call":
        text = tokens.chat_text(_PROBE, tools=tool_schemas("coordinates"))
        if "computer_use" not in text:
            message = (
                "must be 'direct' or 'reasoning' for this policy, got 'tool_call': its chat template "
                "has no tools. Use a checkpoint that was trained to call them."
            )
            problems.append(Problem(key="format", message=message))
    if section.thinking != "model":
        on, off = (tokens.chat_text(_PROBE, thinking=mode) for mode in ("on", "off"))
        if on == off:
            message = (
                f"must be 'model' for this policy, got {section.thinking!r}: its chat template knows "
                "no enable_thinking. Leave it out."
            )
            problems.append(Problem(key="thinking", message=message))
    if problems:
        raise ConfigError([problem.under("agent") for problem in problems])
