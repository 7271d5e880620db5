"""The actions themselves: frozen values, without behavior.

Invariants:

* coordinates and distances are whole numbers on a grid that spans the viewport, 0 to `GRID_SIZE`
  from left to right and from top to bottom, whatever the viewport's size in pixels;
* what points at a position where the mode is `coordinates` points at a numbered element where it
  is `set_of_marks`, under the same verb; all other actions are the same in both modes;
* a text that is no action is an `InvalidAction`, never a guess: nobody invents a click.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

GRID_SIZE = 1000
"""Grid units across the viewport, in both directions; what vision-language models are taught."""

ActionMode: TypeAlias = Literal["coordinates", "set_of_marks"]
"""How an action says where: by a point of the grid, or by the number drawn beside an element."""

ACTION_NAMES: tuple[str, ...] = (
    "left_click",
    "double_click",
    "hover",
    "drag",
    "scroll",
    "type",
    "press",
    "wait",
    "go_back",
    "navigate",
    "answer",
)
"""Every verb of the grammar, in the order in which prompts list them."""


class LeftClick(msgspec.Struct, frozen=True, tag="left_click"):
    """Press and release the left button at a point: `left_click(500, 250)`."""

    x: int
    """Grid units from the left, 0 to 1000."""
    y: int
    """Grid units from the top, 0 to 1000."""


class DoubleClick(msgspec.Struct, frozen=True, tag="double_click"):
    """Click twice at a point: `double_click(500, 250)`."""

    x: int
    """Grid units from the left, 0 to 1000."""
    y: int
    """Grid units from the top, 0 to 1000."""


class Hover(msgspec.Struct, frozen=True, tag="hover"):
    """Move the pointer to a point, no button down: `hover(500, 250)`."""

    x: int
    """Grid units from the left, 0 to 1000."""
    y: int
    """Grid units from the top, 0 to 1000."""


class Drag(msgspec.Struct, frozen=True, tag="drag"):
    """Press at one point, release at another: `drag(100, 100, 800, 100)`."""

    x: int
    """Where the button goes down: grid units from the left, 0 to 1000."""
    y: int
    """Where the button goes down: grid units from the top, 0 to 1000."""
    to_x: int
    """Where it is released: grid units from the left, 0 to 1000."""
    to_y: int
    """Where it is released: grid units from the top, 0 to 1000."""


class ClickMark(msgspec.Struct, frozen=True, tag="click_mark"):
    """Click a numbered element: `left_click(7)`."""

    mark: int
    """Number shown beside the element, from 1."""


class DoubleClickMark(msgspec.Struct, frozen=True, tag="double_click_mark"):
    """Click a numbered element twice: `double_click(7)`."""

    mark: int
    """Number shown beside the element, from 1."""


class HoverMark(msgspec.Struct, frozen=True, tag="hover_mark"):
    """Move the pointer onto a numbered element: `hover(7)`."""

    mark: int
    """Number shown beside the element, from 1."""


class DragMark(msgspec.Struct, frozen=True, tag="drag_mark"):
    """Press at one numbered element, release at another: `drag(7, 8)`."""

    mark: int
    """Number of the element where the button goes down, from 1."""
    to_mark: int
    """Number of the element where it is released, from 1."""


class ScrollMark(msgspec.Struct, frozen=True, tag="scroll_mark"):
    """Turn the wheel over a numbered element, or over the page: `scroll(0, 0, 300)`."""

    mark: int
    """Number shown beside the element; 0 is the middle of the page."""
    dx: int
    """Distance to the right in grid units, -1000 to 1000."""
    dy: int
    """Distance downwards in grid units, -1000 to 1000."""


class TypeText(msgspec.Struct, frozen=True, tag="type"):
    r"""Type into whatever has the focus: `type("hello")`; `\n` presses Enter."""

    text: str
    """The characters to type; never empty."""


class Press(msgspec.Struct, frozen=True, tag="press"):
    """Press one key or chord: `press("Enter")`, `press("Control+a")`."""

    key: str
    """Modifiers and a key joined by `+`, by the browser's names: `a`, `7`, `ArrowDown`."""


class Scroll(msgspec.Struct, frozen=True, tag="scroll"):
    """Turn the wheel over a point: `scroll(500, 500, 0, 300)`."""

    x: int
    """Grid units from the left, 0 to 1000."""
    y: int
    """Grid units from the top, 0 to 1000."""
    dx: int
    """Distance to the right in grid units, -1000 to 1000."""
    dy: int
    """Distance downwards in grid units, -1000 to 1000."""


class Wait(msgspec.Struct, frozen=True, tag="wait"):
    """Let the page work, then look again: `wait()`."""


class GoBack(msgspec.Struct, frozen=True, tag="go_back"):
    """Go back one page in the history: `go_back()`."""


class Navigate(msgspec.Struct, frozen=True, tag="navigate"):
    """Open an address: `navigate("https://example.org/")`."""

    url: str
    """Absolute address; whether it may be opened is the browser's decision."""


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """End the episode with an answer, possibly empty: `answer("42")`."""

    text: str
    """What is answered."""


class InvalidAction(msgspec.Struct, frozen=True, tag="invalid"):
    """A reply that is no action; it costs a step and touches no page."""

    text: str
    """The reply, cut to 200 characters."""
    reason: str
    """What is wrong with it, for the log and for the policy's next prompt."""


MarkAction: TypeAlias = ClickMark | DoubleClickMark | HoverMark | DragMark | ScrollMark
"""What points at a numbered element."""

Action: TypeAlias = (
    LeftClick
    | DoubleClick
    | Hover
    | Drag
    | Scroll
    | MarkAction
    | TypeText
    | Press
    | Wait
    | GoBack
    | Navigate
    | Answer
)
"""Any valid action. Tagged, so that msgspec encodes and decodes the union."""
