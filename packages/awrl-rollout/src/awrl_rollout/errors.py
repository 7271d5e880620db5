"""Errors of `awrl_rollout`, one class for each reaction.

RolloutError                      a mistake of the caller, for example a call of a closed object
|-- EpisodeFaultError             raised by a workflow: the executor records a typed fault
|-- BatchTimeoutError (TimeoutError)  nothing was consumed: wait again, or look who holds things up
|-- StarvedError (RuntimeError)       no batch will ever fill: end the run, or mend what it names
|-- ServerRefusedError (ValueError)   an inference server says that the request itself is wrong
`-- ServerUnavailableError (ConnectionError)  no usable answer from an inference server now

A failed episode is data (`EpisodeRecord.fault`), never one of these.
"""

from __future__ import annotations

from awrl_rollout.episode import FaultKind


class RolloutError(Exception):
    """Root of every error that this package raises of its own."""


class EpisodeFaultError(RolloutError):
    """A workflow ended for a reason that says nothing about the policy.

    Raised *by workflows*; the executor turns it into `EpisodeRecord.fault`. Not raised for an
    episode that ran to its end and failed: that is an outcome.
    """

    def __init__(self, kind: FaultKind, message: str, *, boundary: str = "workflow") -> None:
        super().__init__(message)
        self.kind = kind
        self.boundary = boundary

    def __reduce__(self) -> tuple[object, ...]:
        """Return what pickle needs: the class, its positional arguments and its attributes."""
        return type(self), (self.kind, str(self)), self.__dict__


class BatchTimeoutError(RolloutError, TimeoutError):
    """A wait ran past its limit; nothing was consumed. Not raised for one episode's deadline."""


class StarvedError(RolloutError, RuntimeError):
    """No batch will ever fill: the data are over, faults stopped the run, or nothing may start.

    Not raised while admission is paused, or while an update is still under way.
    """


class ServerRefusedError(RolloutError, ValueError):
    """An inference server says that the request itself is wrong; repeating it can't help.

    Not raised for a server that is busy, paused, starting or gone.
    """


class ServerUnavailableError(RolloutError, ConnectionError):
    """An inference server gave no usable answer in time; the same request may succeed later.

    Not raised for an answer that was cut by a weight update: that is `stop_reason == "abort"`.
    """
