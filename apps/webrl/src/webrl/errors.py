"""Every error that WebRL raises on purpose, in one tree: one class for each reaction.

    WebRLError
    |- ConfigError       (ValueError)    settings or arguments that can not be run as written
    |- TaskError         (ValueError)    a task that does not exist or can not be served
    |- PolicyError       (ValueError)    a policy folder, or a prompt for one, that can not be used
    |- PreflightError    (RuntimeError)  machine or cluster lack what the run needs, before it starts
    |- ServerStartError  (RuntimeError)  an inference server did not come up
    |- EngineCallError   (RuntimeError)  a call to a worker failed or missed its deadline
    |  `- WorkerLostError               its process is gone
    |- RunFailedError    (RuntimeError)  a run that started and had to stop
    |- BrowserFault      (RuntimeError)  an episode could not go on: page, browser or driver failed
    |- JudgeError        (RuntimeError)  an episode has no verdict: the judge failed or was late
    |- BadRequestError   (ValueError)    the embedded server refuses a request: 400, nothing started
    `- WeightUpdateError (RuntimeError)  it refuses a weight update: 400, the weights are as before

A `BrowserFault` or `JudgeError` ends one episode, which is recorded with its typed fault; an episode
that merely fails raises nothing. Exceptions that never leave their module (a rejected action, a malformed answer) are not listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

BrowserFaultKind: TypeAlias = Literal[
    "browser_lost",
    "driver_lost",
    "page_crashed",
    "navigation_error",
    "timeout",
    "dialog_storm",
    "page_error",
    "blocked",
    "refused",
    "name_not_resolved",
    "connection_refused",
    "bad_certificate",
    "no_page",
    "deadly_page",
    "network_down",
    "proxy_lost",
]
"""Which part failed.

`browser_lost`: the browser process is gone; `driver_lost`: its driver; `page_crashed`: a renderer;
`navigation_error`: the task's page can not be opened; `timeout`: a call missed its deadline;
`dialog_storm`: a page opens dialogs for ever; `page_error`: the page's scripts do not answer as
the task says; `blocked`: the site shows a wall to robots or wants to know who asks; `refused`: the
task's page is at an address that pages may not reach; `name_not_resolved`, `connection_refused`,
`bad_certificate`: there is no such site, nothing listens there, or nobody vouches for it; `no_page`:
it gives a download or `not found`; `deadly_page`: its page ended browser after browser;
`network_down`: nothing beyond this machine can be reached; `proxy_lost`: the proxy on the way to all
sites is gone or refuses the credentials.
"""


class WebRLError(Exception):
    """Root of the tree; the command line prints it without a traceback and exits with 2."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One thing that is wrong: which key, what it holds, the rule, and what to do about it."""

    key: str
    """Dotted key, such as `actor.optimizer.lr`; relative to its section until reported."""
    message: str
    """What is wrong, without the key: `must be > 0, got -1. Give a positive rate.`"""

    def under(self, section: str) -> Problem:
        """Return the same problem with its key placed under `section`."""
        key = f"{section}.{self.key}" if self.key else section
        return Problem(key=key, message=self.message)

    def __str__(self) -> str:
        return f"{self.key} {self.message}" if self.key else self.message


class ConfigError(WebRLError, ValueError):
    """One or more configuration keys hold something that can not be run.

    Not raised for keys that merely have no effect in combination: those are warnings.
    """

    def __init__(self, problems: Sequence[Problem] | str) -> None:
        """Report all `problems` at once, one line each; a string is one problem without a key."""
        if isinstance(problems, str):
            problems = (Problem(key="", message=problems),)
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type[ConfigError], tuple[list[Problem]]]:
        """Pickle by problems, so that the error crosses process borders."""
        return ConfigError, (list(self.problems),)


class TaskError(WebRLError, ValueError):
    """A task is unknown or can not be served. Not raised for an episode that fails."""


class PolicyError(WebRLError, ValueError):
    """A policy folder lacks what is needed, or a prompt and its images do not fit together."""


class PreflightError(WebRLError, RuntimeError):
    """The machine or the cluster lacks something that the run needs; no episode has started.

    Not raised for a browser that was found and does not start: that ends a run under way.
    """


class ServerStartError(WebRLError, RuntimeError):
    """An inference server ended or did not become healthy in time; holds the end of its log."""


class EngineCallError(WebRLError, RuntimeError):
    """A call to a worker raised there, or did not answer within its deadline."""


class WorkerLostError(EngineCallError):
    """The worker's process is gone. Not raised for a call that failed in a living worker."""


class RunFailedError(WebRLError, RuntimeError):
    """A run that was under way had to stop; the message says why and what was saved."""


class BrowserFault(WebRLError, RuntimeError):
    """A page, a browser or its driver failed; `webrl.endings` says whose doing that is.

    Not raised for an action that does nothing, for a dialog, a popup or a refused download: those
    are events.
    """

    def __init__(self, kind: BrowserFaultKind, detail: str) -> None:
        """Say which part failed, and how."""
        super().__init__(f"{kind}: {detail}")
        self.kind: BrowserFaultKind = kind
        self.detail = detail

    def __reduce__(self) -> tuple[type[BrowserFault], tuple[BrowserFaultKind, str]]:
        """Pickle by parts, so that the fault crosses process borders."""
        return BrowserFault, (self.kind, self.detail)


class JudgeError(WebRLError, RuntimeError):
    """There is no verdict on an episode: a fault of the infrastructure, never a reward.

    Not raised for an episode that the judge finds wanting, nor for a site that blocks: those are
    verdicts. The message never holds the key that opens the server.
    """


class BadRequestError(WebRLError, ValueError):
    """A request is wrong as it stands. Not raised for a server that is paused or busy."""


class WeightUpdateError(WebRLError, RuntimeError):
    """Names, shapes, dtypes, files or the broadcast group do not fit. The weights are as before."""
