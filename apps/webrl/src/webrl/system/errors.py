"""Errors of a running system.

    RunFailedError
    |- EngineCallError    a worker of a role failed, died, or did not answer in time
    `- ServerStartError   an inference server ended or stayed silent during its start

Neither is raised for a failed episode, which is data.
"""

from __future__ import annotations

from webrl.errors import RunFailedError


class EngineCallError(RunFailedError):
    """A call to a worker failed; the message names role, rank and method."""


class ServerStartError(RunFailedError):
    """An inference server did not start; the message carries the end of its log."""
