"""What is known about single MiniWoB++ pages: sizes, step limits, thresholds, oddities.

Invariant: a page that is not listed has the defaults of `webrl.tasks.miniwob`.
"""

from __future__ import annotations

from collections.abc import Mapping

FLIGHTS = ("AA", "Alaska", "Alaska-auto", "Alaska-auto-medium")
"""FlightWoB: sites of airlines in a frame, in folders of their own. Together with the single pages
this is all that the distribution ships, and a pointer and a keyboard can do all of it."""

RELOAD: frozenset[str] = frozenset(
    {
        "click-menu",
        "drag-items",
        "drag-items-grid",
        "drag-sort-numbers",
        "flight.AA",
        "flight.Alaska",
        "flight.Alaska-auto",
        "flight.Alaska-auto-medium",
        "form-sequence",
        "hot-cold",
        "navigate-tree",
        "simon-says",
        "use-slider",
        "use-slider-2",
    }
)
"""Pages that bind new handlers to lasting elements at each restart, so that an old episode's
handler would judge the next one."""

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
