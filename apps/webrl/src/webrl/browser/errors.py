"""Faults of the environment, typed, and the errors of the layer itself.

    webrl.errors.BrowserError
    |- BrowserNotFoundError  no usable Chromium on this machine; the message holds the fix
    `- BrowserFault          an episode could not go on; says which part failed

A fault is never the policy's failure and never carries a reward. It is not raised for an action
that does nothing, for a dialog, a popup or a refused download: those are events.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from webrl.errors import BrowserError

FaultKind: TypeAlias = Literal[
    "browser_lost",
    "driver_lost",
    "page_crashed",
    "navigation_error",
    "timeout",
    "dialog_storm",
    "page_error",
    "blocked",
]
"""Which part failed.

`browser_lost`: the browser process is gone; `driver_lost`: its driver; `page_crashed`: a renderer;
`navigation_error`: the task's page can not be opened; `timeout`: a call missed its deadline;
`dialog_storm`: a page opens dialogs for ever; `page_error`: the page's scripts do not answer as
the task says; `blocked`: the site shows a wall to robots.
"""


class BrowserNotFoundError(BrowserError):
    """No Chromium was found. Not raised when one was found and does not start."""


class BrowserFault(BrowserError):
    """An episode ended because of its environment."""

    def __init__(self, kind: FaultKind, detail: str) -> None:
        """Say which part failed, and how."""
        super().__init__(f"{kind}: {detail}")
        self.kind: FaultKind = kind
        self.detail = detail

    def __reduce__(self) -> tuple[type[BrowserFault], tuple[FaultKind, str]]:
        """Pickle by parts, so that the fault crosses process borders."""
        return BrowserFault, (self.kind, self.detail)
