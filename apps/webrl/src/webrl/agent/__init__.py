"""The agent: what a policy is told, and what its replies mean.

An `Agent` turns an episode so far (`Scene`) into a `PolicyPrompt` within a budget of tokens, and a reply into
a `Decision`: thought, memory, and one action or the reason why there is none. `[agent]` chooses and
configures it; the workflow knows no format. `write` is the way back, for demonstrations.

| `agent.format` | a reply | history |
|---|---|---|
| `direct` | one action, nothing else | actions and what came of them |
| `reasoning` | `<thought>`, `<memory>`, `<action>` | the same, newest thoughts, the memory |
| `tool_call` | a sentence and one `<tool_call>` | turns of the chat as far as screenshots go, older ones as lines |
"""

from __future__ import annotations

from webrl.agent.choose import check_agent, make_agent, opens_thinking
from webrl.agent.direct import DirectAgent, direct_chat
from webrl.agent.history import PolicyPrompt, Scene, Turn
from webrl.agent.instructions import MARKS_SYSTEM_PROMPT, SYSTEM_PROMPT
from webrl.agent.protocol import Agent, ChatTokens, Message, ThinkingMode
from webrl.agent.readers import read_direct, read_reasoning, read_tool_call
from webrl.agent.reasoning import ReasoningAgent
from webrl.agent.reply import Decision
from webrl.agent.texts import action_lines, user_text
from webrl.agent.tool_call import ToolCallAgent

__all__ = [
    "MARKS_SYSTEM_PROMPT",
    "SYSTEM_PROMPT",
    "Agent",
    "ChatTokens",
    "Decision",
    "DirectAgent",
    "Message",
    "PolicyPrompt",
    "ReasoningAgent",
    "Scene",
    "ThinkingMode",
    "ToolCallAgent",
    "Turn",
    "action_lines",
    "check_agent",
    "direct_chat",
    "make_agent",
    "opens_thinking",
    "read_direct",
    "read_reasoning",
    "read_tool_call",
    "user_text",
]
