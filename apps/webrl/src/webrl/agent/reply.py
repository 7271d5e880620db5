"""What a reply of a policy was read as, and the parts that every format takes off first."""

from __future__ import annotations

import re

import msgspec

from webrl.actions import Action, InvalidAction, RejectedReply, invalid_action

_END_OF_THINKING = "</think>"
_SAID = re.compile(r"<(?:thought|memory|action|tool_call)>", re.IGNORECASE)
"""What stands in no thinking, so that its end is looked for no further."""
_TAG_START = re.compile(r"<(?=\s{0,2}/?\s{0,2}[\w|])")
_THINKING = re.compile(r"\A\s*<think>", re.IGNORECASE)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One reply, read: the one action that it decides on, or why there is none."""

    action: Action | InvalidAction
    """What is done, or the reason that is fed back."""
    thought: str = ""
    """Why, in the policy's words; empty where it gave none. A thinking model's `<think>` block is no
    part of it."""
    memory: str | None = None
    """What the policy wants to be told again; `None` leaves what it noted before."""
    is_in_form: bool = True
    """Whether the reply was written as the prompt asks, with nothing to read over or mend."""

    @property
    def is_valid(self) -> bool:
        """Return whether there is an action."""
        return not isinstance(self.action, InvalidAction)


def without_thinking(reply: str, *, is_opened: bool = False) -> str:
    """Return what stands behind the `<think>` block of a reply.

    Args:
        is_opened: Whether the prompt itself ended with `<think>`.

    Raises:
        RejectedReply: The block does not end, so nothing was decided.
    """
    before, end, rest = reply.partition(_END_OF_THINKING)
    is_opened = is_opened or _THINKING.match(reply) is not None
    if end and (is_opened or _SAID.search(before) is None):
        return rest.strip()
    if is_opened:
        raise RejectedReply("the answer ended within its thoughts; think less and then act")
    return reply.strip()


def undecided(reply: str, reason: str, *, thought: str = "", memory: str | None = None) -> Decision:
    """Return the reading of a reply without an action."""
    return Decision(
        action=invalid_action(reply, reason), thought=thought, memory=memory, is_in_form=False
    )


def cut_short(decision: Decision, reply: str) -> Decision:
    """Return the reading of a reply that has no end: without an action it says that first."""
    if not isinstance(decision.action, InvalidAction):
        return decision
    reason = f"the answer was cut, as it was too long: {decision.action.reason}"
    return undecided(reply, reason, thought=decision.thought, memory=decision.memory)


def written(decision: Decision) -> Action:
    """Return the action of a decision that is to be written down.

    Raises:
        ValueError: It has none.
    """
    if isinstance(decision.action, InvalidAction):
        raise ValueError(f"decision must have an action, got {decision.action.reason!r}.")
    return decision.action


def without_tags(text: str) -> str:
    """Return JSON, or a call of the grammar, whose strings spell no tag that readers look for."""
    return _TAG_START.sub("\\\\u003c", text)
