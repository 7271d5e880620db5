"""How an episode can end and whose doing that is: one table, and the one place that asks it.

Invariants:
    * what the policy can bring about is a result: a reward, 0 unless the task says better; it stays
      in the group and in an evaluation's denominator. Else training would find the way out;
    * what breaks beneath the policy is a fault: run again or refilled, never a reward;
    * until the policy's first action everything is the infrastructure's doing; from then on a page
      that fails is the policy's, as long as the browser and its driver answer.

`docs/endings.md` shows the table; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec
from awrl_pixelstore import PixelStoreError
from awrl_rollout import (
    EpisodeFaultError,
    FaultKind,
    ServerRefusedError,
    ServerUnavailableError,
)

from webrl.errors import BrowserFault, BrowserFaultKind, JudgeError, PolicyError

EndReason: TypeAlias = Literal[
    "task",
    "answer",
    "max_steps",
    "invalid_limit",
    "prompt_full",
    "time_limit",
    "page_hung",
    "page_crashed",
    "page_error",
    "dialog_storm",
]
"""Endings that are the policy's doing."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    name: str
    """What it is called in records and in the documentation."""
    when: str
    """What has happened."""
    fault: FaultKind | None = None
    """How it is recorded; `None` for a result of the policy's."""
    boundary: str = "browser"
    """Which part a fault is booked to."""

    @property
    def is_policys(self) -> bool:
        """Return whether the policy brought it about: a result, not a fault."""
        return self.fault is None


def _result(name: EndReason, when: str) -> Ending:
    return Ending(name=name, when=when)


_TABLE = (
    _result("task", "the page, or an address that it reached, ended the task: its reward counts"),
    _result("answer", "the policy answered: the task's pattern or the judge decides"),
    _result(
        "max_steps",
        "the steps are used up; a reply without an action, one that `max_new_tokens` cut, and an "
        "action that is refused or does nothing cost a step each",
    ),
    _result("invalid_limit", "`agent.invalid_limit` replies one after another held no action"),
    _result("prompt_full", "what it noted and did leaves no room for an answer in the context"),
    _result("time_limit", "its actions together took more than half of `env.episode_timeout_s`"),
    _result("page_hung", "after an action the page answers no more, though the browser does"),
    _result("page_crashed", "after an action the page's process ended, or its last page is closed"),
    _result("page_error", "after an action the page no longer says how the task stands"),
    _result("dialog_storm", "an action opened more than ten dialogs"),
    Ending(
        name="site_blocked",
        when="the start page is a wall to robots, or wants to know who asks, or the judge saw the site shut the agent out",
        fault=FaultKind.SITE_BLOCKED,
    ),
    Ending(
        name="start_refused",
        when="the start page is at an address that pages may not reach",
        fault=FaultKind.ADDRESS_REFUSED,
    ),
    Ending(
        name="start_unnamed",
        when="the name of the start page's site is not resolved",
        fault=FaultKind.NAME_NOT_RESOLVED,
    ),
    Ending(
        name="start_closed",
        when="nothing listens where the start page should be",
        fault=FaultKind.CONNECTION_REFUSED,
    ),
    Ending(
        name="start_untrusted",
        when="the certificate of the start page's site is not to be trusted",
        fault=FaultKind.BAD_CERTIFICATE,
    ),
    Ending(
        name="start_missing",
        when="the start page is a download, or the site has none there (status 404, 410)",
        fault=FaultKind.NO_PAGE,
    ),
    Ending(
        name="start_deadly",
        when="the start page ended browser after browser, and is not opened for a while",
        fault=FaultKind.DEADLY_PAGE,
    ),
    Ending(
        name="start_unreachable",
        when="the start page can not be opened for any other reason: too slow, an error, a cut",
        fault=FaultKind.NAVIGATION_ERROR,
    ),
    Ending(
        name="start_dialog_storm",
        when="the start page opens dialogs for ever",
        fault=FaultKind.NAVIGATION_ERROR,
    ),
    Ending(
        name="start_page_error",
        when="the task's scripts do not work on its start page",
        fault=FaultKind.PAGE_ERROR,
    ),
    Ending(
        name="network_down",
        when="no name is resolved and no address has a way to it",
        fault=FaultKind.NETWORK_DOWN,
    ),
    Ending(
        name="proxy_lost",
        when="the proxy of `env.proxy` is gone, or refuses the credentials",
        fault=FaultKind.NETWORK_DOWN,
    ),
    Ending(
        name="browser_lost",
        when="the browser's process is gone, or did not start",
        fault=FaultKind.BROWSER_LOST,
    ),
    Ending(name="driver_lost", when="the browser's driver is gone", fault=FaultKind.BROWSER_LOST),
    Ending(
        name="start_crashed",
        when="the page's process ended before the first action",
        fault=FaultKind.BROWSER_LOST,
    ),
    Ending(
        name="no_answer",
        when="browser or driver, or before the first action the page, did not answer in time",
        fault=FaultKind.TIMEOUT,
    ),
    Ending(
        name="no_verdict",
        when="the judge failed, was late, or never answered in form",
        fault=FaultKind.JUDGE_ERROR,
        boundary="judge",
    ),
    Ending(
        name="no_generation",
        when="the inference servers are gone, hang, or refuse the request",
        fault=FaultKind.GENERATION_ERROR,
        boundary="generation",
    ),
    Ending(
        name="prompt_too_long",
        when="goal and screenshots alone do not fit into `inference.context_length`",
        fault=FaultKind.WORKFLOW_ERROR,
        boundary="prompt",
    ),
    Ending(
        name="no_pixels",
        when="the PixelStore took no screenshot",
        fault=FaultKind.WORKFLOW_ERROR,
        boundary="pixelstore",
    ),
    Ending(
        name="out_of_time",
        when="the episode ran past `env.episode_timeout_s` for another reason than its actions",
        fault=FaultKind.TIMEOUT,
        boundary="executor",
    ),
    Ending(
        name="worker_lost",
        when="the rollout worker is gone",
        fault=FaultKind.WORKER_LOST,
        boundary="worker",
    ),
    Ending(
        name="cancelled",
        when="the run or an evaluation no longer wants the episode",
        fault=FaultKind.CANCELLED,
        boundary="executor",
    ),
    Ending(
        name="workflow_error",
        when="anything else failed: a mistake in the program",
        fault=FaultKind.WORKFLOW_ERROR,
        boundary="workflow",
    ),
)

ENDINGS: Mapping[str, Ending] = {ending.name: ending for ending in _TABLE}
"""Every ending by name."""

_OF_PAGE: Mapping[BrowserFaultKind, EndReason] = {
    "timeout": "page_hung",
    "page_crashed": "page_crashed",
    "browser_lost": "page_crashed",
    "page_error": "page_error",
    "navigation_error": "page_error",
    "dialog_storm": "dialog_storm",
}
"""A page that failed by the policy's doing; with the browser alive, what is lost is the page."""

_OF_BROWSER: Mapping[BrowserFaultKind, str] = {
    "browser_lost": "browser_lost",
    "driver_lost": "driver_lost",
    "page_crashed": "start_crashed",
    "navigation_error": "start_unreachable",
    "timeout": "no_answer",
    "dialog_storm": "start_dialog_storm",
    "page_error": "start_page_error",
    "blocked": "site_blocked",
    "refused": "start_refused",
    "name_not_resolved": "start_unnamed",
    "connection_refused": "start_closed",
    "bad_certificate": "start_untrusted",
    "no_page": "start_missing",
    "deadly_page": "start_deadly",
    "network_down": "network_down",
    "proxy_lost": "proxy_lost",
}
"""The same as the infrastructure's doing."""

_OF_ERROR: Mapping[type[Exception], str] = {
    JudgeError: "no_verdict",
    ServerRefusedError: "no_generation",
    ServerUnavailableError: "no_generation",
    PolicyError: "prompt_too_long",
    PixelStoreError: "no_pixels",
}


EPISODE_ERRORS = (BrowserFault, *_OF_ERROR)
"""What an episode may raise on its way; anything else is the executor's `workflow_error`."""


def ending_of(error: Exception, *, is_page_at_fault: bool = False) -> Ending:
    """Return the ending that `error` brought about.

    Args:
        is_page_at_fault: Whether the policy had acted, and browser and driver are well.
    """
    if isinstance(error, BrowserFault):
        if is_page_at_fault and error.kind in _OF_PAGE:
            return ENDINGS[_OF_PAGE[error.kind]]
        return ENDINGS[_OF_BROWSER[error.kind]]
    names = (name for kind, name in _OF_ERROR.items() if isinstance(error, kind))
    return ENDINGS[next(names, "workflow_error")]


def as_fault(error: Exception, site: str = "") -> EpisodeFaultError:
    """Return `error` as the executor records it, to be raised from it.

    Args:
        site: Where it was met, for its message.
    """
    ending = ending_of(error)
    assert ending.fault is not None  # only pages that the policy acted on end otherwise
    return EpisodeFaultError(
        ending.fault, f"{site}: {error}" if site else str(error), boundary=ending.boundary
    )
