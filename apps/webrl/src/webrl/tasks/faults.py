"""FaultWoB: hostile pages as tasks, each with the actions that meet its trouble and the outcome.

Invariants:

* every case is a test of the browser layer and, by name (`fault/alert`), a task to train on;
* the expected outcome is either a reward with the events that came before it, or the kind of the
  fault; nothing in between;
* a page that the policy's action breaks is its failure, one that is broken from the start a fault.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from webrl.actions import Action, Drag, GoBack, LeftClick, Navigate, Wait
from webrl.tasks.fault_site import PREFIX, STATE_SCRIPT
from webrl.tasks.task import Task, Viewport

SUITE = "fault"

TROUBLE = LeftClick(250, 250)
"""Clicks the left button."""
DONE = LeftClick(750, 250)
"""Clicks the right button."""

_SECOND = r"http://[^/]+/fault/second\.html"


class FaultCase(msgspec.Struct, frozen=True, kw_only=True):
    """One hostile page, what to do there, and how it must end."""

    task: Task
    """The page as a task."""
    actions: tuple[Action, ...]
    """What to do, in order; what is left when the episode ends is not done."""
    reward: float | None = None
    """Expected reward; `None` when a fault is expected."""
    fault: str | None = None
    """Expected kind of fault; `None` when a reward is expected."""
    ending: str | None = None
    """Expected ending, where a page fails by the policy's doing."""
    events: tuple[str, ...] = ()
    """Kinds of events that must come, in any order."""


def _case(
    name: str,
    *actions: Action,
    page: str | None = None,
    reward: float | None = 1.0,
    fault: str | None = None,
    ending: str | None = None,
    events: tuple[str, ...] = (),
    final_url: str | None = None,
) -> FaultCase:
    address = page or f"{name}.html"
    task = Task(
        suite=SUITE,
        name=name,
        url=PREFIX + address,
        goal="Click the left button, then the right one.",
        max_steps=max(len(actions), 1),
        reset="new_context",
        viewport=Viewport(320, 240),
        state_script=STATE_SCRIPT,
        final_url=final_url,
        settle_s=0.4,
    )
    return FaultCase(
        task=task,
        actions=actions,
        reward=None if fault else 0.0 if ending else reward,
        fault=fault,
        ending=ending,
        events=events,
    )


_SURVIVED = (TROUBLE, DONE)
_BACK = (TROUBLE, GoBack(), DONE)

_CASES = (
    _case("plain", *_SURVIVED),
    _case("alert", *_SURVIVED, events=("dialog",)),
    _case("confirm", *_SURVIVED, events=("dialog",)),
    _case("prompt", *_SURVIVED, events=("dialog",)),
    _case("alert-later", TROUBLE, Wait(), DONE, events=("dialog",)),
    _case("alert-long", *_SURVIVED, events=("dialog",)),
    _case("alert-storm", *_SURVIVED, ending="dialog_storm"),
    _case("beforeunload", TROUBLE, Wait(), events=("dialog",), final_url=_SECOND),
    _case("print", *_SURVIVED),
    _case("busy", *_SURVIVED, ending="page_hung"),
    _case("busy-worker", *_SURVIVED),
    _case("oom", *_SURVIVED, ending="page_crashed"),
    _case("self-reload", Wait(), Wait(), reward=0.0),
    _case("bounce", Wait(), Wait(), reward=0.0),
    _case("window-close", *_SURVIVED),
    _case("debugger", *_SURVIVED),
    _case("throw", *_SURVIVED),
    _case("image-never", *_SURVIVED),
    _case("font-never", *_SURVIVED),
    _case("script-never", *_SURVIVED),
    _case("stream", *_SURVIVED),
    _case("link-never", *_SURVIVED),
    _case("long-poll", *_SURVIVED),
    _case("fetch-storm", *_SURVIVED),
    _case("socket-storm", *_SURVIVED),
    _case("console-storm", *_SURVIVED),
    _case("history-storm", *_SURVIVED),
    _case("big-dom", *_SURVIVED),
    _case("frames", *_SURVIVED),
    _case("popup-storm", TROUBLE, *[GoBack()] * 4, DONE, events=("popup",)),
    _case("popup-blank", *_BACK, events=("popup",)),
    _case("popup-closes", TROUBLE, Wait(), DONE),
    _case("popup-never", *_BACK, events=("popup",)),
    _case("new-tab-never", *_BACK),
    _case("new-tab", TROUBLE, events=("popup",), final_url=_SECOND),
    _case("new-tab-noopener", TROUBLE, events=("popup",), final_url=_SECOND),
    _case("download", *_SURVIVED, events=("download",)),
    _case("download-tab", *_SURVIVED, events=("download",)),
    _case("pdf-tab", *_SURVIVED, events=("download",)),
    _case("file-chooser", *_SURVIVED, events=("file_chooser",)),
    _case("local-file", *_SURVIVED),
    _case("select", LeftClick(250, 40), LeftClick(60, 175), DONE),
    _case("date", *_SURVIVED),
    _case("fullscreen", *_SURVIVED),
    _case("geolocation", *_SURVIVED),
    _case("notification", *_SURVIVED),
    _case("mailto", *_SURVIVED),
    _case("draggable", Drag(100, 650, 500, 650), DONE),
    _case("link-no-content", *_SURVIVED),
    _case("link-auth", *_BACK),
    _case("link-cut", *_BACK),
    _case("link-loop", *_BACK),
    _case("link-private", *_BACK),
    _case("link-unknown-host", *_BACK),
    _case("link-unsafe-port", *_BACK),
    _case("storage", *_SURVIVED),
    _case("service-worker", *_SURVIVED),
    _case("back-at-start", GoBack(), DONE, page="plain.html", events=("no_effect",)),
    _case(
        "local-address",
        Navigate("file:///etc/passwd"),
        DONE,
        page="plain.html",
        events=("refused",),
    ),
    _case("never", DONE, page="never", fault="navigation_error"),
    _case("loop", DONE, page="loop", fault="navigation_error"),
    _case("cut", DONE, page="cut", fault="navigation_error"),
    _case("down", DONE, page="down", fault="navigation_error"),
    _case("wall", DONE, page="wall", fault="blocked"),
    _case("file", DONE, page="file.bin", fault="no_page"),
)

FAULT_CASES: Mapping[str, FaultCase] = {case.task.name: case for case in _CASES}
"""Cases by name."""
