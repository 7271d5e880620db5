"""What an episode gives back: observations, step outcomes, events.

Invariants:

* a screenshot shows exactly the viewport, one image pixel per CSS pixel;
* only the last outcome of an episode has a reward, and it has no observation: nobody looks at a
  page after the end;
* a page that fails by the policy's doing ends the episode with reward 0; a fault of what is
  beneath is raised, never returned, and has no reward.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from webrl.endings import EndReason

EventKind: TypeAlias = Literal[
    "invalid_action",
    "no_effect",
    "dialog",
    "popup",
    "download",
    "file_chooser",
    "navigation_error",
    "page_crashed",
    "page_closed",
    "refused",
]


class Event(msgspec.Struct, frozen=True):
    """Something that happened besides the pixels, since the step before."""

    kind: EventKind
    """What happened."""
    detail: str
    """Its text, cut to 200 characters."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


class Mark(msgspec.Struct, frozen=True):
    """One numbered element of a marked screenshot."""

    number: int
    """What is drawn beside it, from 1 in reading order."""
    x: float
    """A point of it that nothing covers, CSS pixels from the left."""
    y: float
    """The same point, CSS pixels from the top."""
    text: str
    """Tag and text, such as `button: Submit`; for prompts and logs."""


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy sees before a step."""

    screenshot: bytes
    """Encoded image (`png` or `jpeg`), RGB, of exactly the viewport."""
    width: int
    """Pixels."""
    height: int
    """Pixels."""
    goal: str
    """Instruction of this episode."""
    url: str
    """Address of the page."""
    marks: tuple[Mark, ...] = ()
    """Numbered elements; empty unless the pool marks its screenshots."""
    events: tuple[Event, ...] = ()
    """What happened since the step before."""


class StepOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one action led to."""

    observation: Observation | None
    """The page after the action; `None` when the episode is done."""
    is_done: bool
    """Whether the episode ended with this action."""
    reward: float | None = None
    """1.0 when the raw reward reached the task's threshold, else 0.0; `None` until done."""
    raw_reward: float | None = None
    """What the page reported, as it is; `None` until done."""
    end_reason: EndReason | None = None
    """What ended the episode; `None` until done."""
    events: tuple[Event, ...] = ()
    """What happened since the step before."""
