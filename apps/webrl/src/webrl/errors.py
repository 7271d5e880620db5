"""Every error that WebRL raises on purpose, in one tree.

    WebRLError
    |- ConfigError       (ValueError)    a configuration that can not be run as written
    |- AllocationError   (ValueError)    an `allocation_mode` that does not parse
    |- PreflightError    (RuntimeError)  the machine lacks what the run needs, before it starts
    |- PlacementError    (RuntimeError)  the cluster can not hold the roles
    |- TaskError         (ValueError)    a task that does not exist or can not be served
    |- PolicyError       (ValueError)    a policy folder that can not be used
    |- BrowserError      (RuntimeError)  the browser layer itself failed (not one page)
    |- ServerStartError  (RuntimeError)  an inference server did not come up
    |- EngineCallError   (RuntimeError)  a call to a worker failed or missed its deadline
    |  `- WorkerLostError               its process is gone
    |- JudgeError        (RuntimeError)  no verdict: the judge failed, was late, or out of form
    `- RunFailedError    (RuntimeError)  a run that started and had to stop

None of them is raised for a failed episode: that is data, recorded once with its typed fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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


class AllocationError(WebRLError, ValueError):
    """The allocation string does not parse; the message draws a caret under the character."""

    def __init__(self, message: str, text: str, position: int) -> None:
        """Point at `position` (0-based character index) of `text`."""
        shown = "".join(" " if character.isspace() else character for character in text)
        super().__init__(f"{message}\n  {shown}\n  {' ' * position}^")
        self.reason = message
        self.text = text
        self.position = position

    def __reduce__(self) -> tuple[type[AllocationError], tuple[str, str, int]]:
        """Pickle by parts, so that the error crosses process borders."""
        return AllocationError, (self.reason, self.text, self.position)


class PreflightError(WebRLError, RuntimeError):
    """The machine lacks something that the run needs; raised before any process starts."""


class PlacementError(WebRLError, RuntimeError):
    """The cluster can not hold the roles; the message holds both numbers."""


class TaskError(WebRLError, ValueError):
    """A task is unknown or can not be served. Not raised for an episode that fails."""


class PolicyError(WebRLError, ValueError):
    """A policy folder is missing, incomplete, or not an image-text model."""


class BrowserError(WebRLError, RuntimeError):
    """The browser or its driver failed as a whole. A misbehaving page is a fault instead."""


class ServerStartError(WebRLError, RuntimeError):
    """An inference server ended or did not become healthy in time; holds the end of its log."""


class EngineCallError(WebRLError, RuntimeError):
    """A call to a worker raised there, or did not answer within its deadline."""


class WorkerLostError(EngineCallError):
    """The worker's process is gone. Not raised for a call that failed in a living worker."""


class JudgeError(WebRLError, RuntimeError):
    """There is no verdict on an episode: a fault of the infrastructure, never a reward.

    Not raised for an episode that the judge finds wanting, nor for a site that blocks: those are
    verdicts. The message never holds the key that opens the server.
    """


class RunFailedError(WebRLError, RuntimeError):
    """A run that was under way had to stop; the message says why and what was saved."""
