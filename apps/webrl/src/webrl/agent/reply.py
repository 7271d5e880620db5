"""What a reply of a policy was read as, and the parts that every format takes off first."""

from __future__ import annotations

import re

import msgspec

from webrl.actions import Action, InvalidAction, RejectedReply, invalid_action

_END_OF_THINKING = "</think>"
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
    _, end, rest = reply.rpartition(_END_OF_THINKING)
    if not end and (is_opened or _THINKING.match(reply)):
        raise RejectedReply("the answer ended within its thoughts; think less and then act")
    return rest.strip()


def undecided(reply: str, reason: str, *, thought: str = "", memory: str | None = None) -> Decision:
    """Return the reading of a reply without an action."""
    return Decision(
        action=invalid_action(reply, reason), thought=thought, memory=memory, is_in_form=False
    )
