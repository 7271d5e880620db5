"""What is known about single MiniWoB++ pages: sizes, step limits, thresholds, oddities.

Invariant: a page that is not listed has the defaults of `webrl.tasks.miniwob`.
"""

from __future__ import annotations

from collections.abc import Mapping

FLIGHTS = ("AA", "Alaska", "Alaska-auto", "Alaska-auto-medium")
"""FlightWoB: sites of airlines in a frame, in folders of their own. Together with the single pages
this is all that the distribution ships, and a pointer and a keyboard can do all of it."""

IN_PLACE: frozenset[str] = frozenset(
    {
        "ascending-numbers",
        "bisect-angle",
        "button-delay",
        "buy-ticket",
        "choose-list",
        "circle-center",
        "click-button",
        "click-button-sequence",
        "click-checkboxes",
        "click-checkboxes-large",
        "click-checkboxes-soft",
        "click-checkboxes-transfer",
        "click-collapsible",
        "click-collapsible-2",
        "click-collapsible-2-nodelay",
        "click-collapsible-nodelay",
        "click-color",
        "click-link",
        "click-option",
        "click-pie-nodelay",
        "click-scroll-list",
        "click-shades",
        "click-shape",
        "click-tab",
        "click-tab-2",
        "click-tab-2-easy",
        "click-tab-2-hard",
        "click-tab-2-medium",
        "click-test",
        "click-test-2",
        "click-test-transfer",
        "click-widget",
        "copy-paste",
        "copy-paste-2",
        "count-shape",
        "count-sides",
        "daily-calendar",
        "drag-circle",
        "drag-shapes",
        "drag-shapes-2",
        "drag-single-shape",
        "email-inbox",
        "email-inbox-delete",
        "email-inbox-forward",
        "email-inbox-forward-nl",
        "email-inbox-forward-nl-turk",
        "email-inbox-important",
        "email-inbox-nl-turk",
        "email-inbox-noscroll",
        "email-inbox-reply",
        "email-inbox-star-reply",
        "enter-date",
        "enter-password",
        "enter-text",
        "enter-text-2",
        "enter-text-dynamic",
        "enter-time",
        "find-greatest",
        "find-midpoint",
        "focus-text",
        "focus-text-2",
        "form-sequence-2",
        "generate-number",
        "grid-coordinate",
        "guess-number",
        "highlight-text",
        "highlight-text-2",
        "identify-shape",
        "login-user",
        "login-user-popup",
        "multi-layouts",
        "multi-orderings",
        "number-checkboxes",
        "odd-or-even",
        "order-food",
        "phone-book",
        "read-table",
        "read-table-2",
        "resize-textarea",
        "right-angle",
        "sign-agreement",
        "simple-algebra",
        "simple-arithmetic",
        "social-media",
        "social-media-all",
        "social-media-some",
        "text-transform",
        "unicode-test",
        "use-autocomplete",
        "visual-addition",
    }
)
"""Pages that start an episode by script as a page that was just loaded does, whatever was done to
them before: the same elements, fields, handlers, timers, globals and pixels. All others are loaded
again for each episode. The test that drives every page with random input holds the list to that."""

UNSTEADY: frozenset[str] = frozenset(
    {
        "chase-circle",
        "click-dialog",
        "click-dialog-2",
        "click-pie",
        "drag-cube",
        "email-inbox",
        "email-inbox-delete",
        "email-inbox-forward",
        "email-inbox-forward-nl",
        "email-inbox-forward-nl-turk",
        "email-inbox-important",
        "email-inbox-nl-turk",
        "email-inbox-noscroll",
        "email-inbox-reply",
        "email-inbox-star-reply",
        "flight.AA",
        "flight.Alaska",
        "flight.Alaska-auto",
        "flight.Alaska-auto-medium",
        "moving-items",
        "navigate-tree",
        "order-food",
        "simon-says",
        "stock-market",
    }
)
"""Pages that move by themselves, depend on the time, or get their focus ring late, so that a seed
does not fix the pixels."""

MAX_STEPS: Mapping[str, int] = {
    "click-test": 1,
    "click-test-2": 1,
    "click-test-transfer": 1,
    "click-dialog": 1,
    "click-dialog-2": 1,
    "click-tab": 1,
    "click-button": 1,
    "click-color": 1,
    "click-widget": 1,
    "grid-coordinate": 1,
    "click-button-sequence": 4,
    "click-collapsible": 4,
    "ascending-numbers": 7,
    "tic-tac-toe": 6,
    "simon-says": 6,
    "flight.AA": 30,
    "flight.Alaska": 30,
    "flight.Alaska-auto": 30,
    "flight.Alaska-auto-medium": 30,
}
"""Actions of one episode where the default of 10 is not apt."""

THRESHOLD: Mapping[str, float] = {f"flight.{name}": 0.99 for name in FLIGHTS}
"""Smallest raw reward that is success, where the default of 0.5 is not apt: a flight's is the share
of right fields."""

VIEWPORTS: Mapping[str, tuple[int, int]] = {
    "buy-ticket": (160, 240),
    "click-pie": (160, 400),
    "click-pie-nodelay": (160, 400),
    "flight.AA": (375, 667),
    "flight.Alaska": (375, 667),
    "flight.Alaska-auto": (375, 667),
    "flight.Alaska-auto-medium": (375, 667),
    "simon-says": (160, 240),
}
"""Width and height of pages that are larger than 160 x 224 pixels."""
