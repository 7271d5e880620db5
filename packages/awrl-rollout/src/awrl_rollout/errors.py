"""Errors of `awrl_rollout`.

RolloutError
|-- EpisodeFaultError             a workflow tells of a typed fault
|-- ClosedError (RuntimeError)    the object was closed
|-- BatchTimeoutError (TimeoutError)  a wait ran past its limit
|-- DataExhaustedError (LookupError)  a single pass over the tasks is over
|-- FaultShareError (RuntimeError)    the circuit breaker stopped the run
|-- StarvedError (RuntimeError)       a batch that can never fill
|-- ServerRefusedError (ValueError)   an inference server says that the request is wrong
`-- ServerUnavailableError (ConnectionError)  no answer from an inference server now
    `-- GenerationDeadlineError (TimeoutError)  nor within the deadline

A failed episode is data (`EpisodeRecord.fault`), never one of these.
"""

from __future__ import annotations

from awrl_rollout.faults import FaultKind


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


class ClosedError(RolloutError, RuntimeError):
    """The executor, pool or controller was closed. Not raised by a second `aclose`."""


class BatchTimeoutError(RolloutError, TimeoutError):
    """A wait ran past its limit; nothing was consumed. Not raised for one episode's deadline."""


class DataExhaustedError(RolloutError, LookupError):
    """A task source of a single pass has no more groups. Never raised by an endless source."""


class FaultShareError(RolloutError, RuntimeError):
    """The share of faults stayed above its limit. Not raised for a few faults in a good run."""


class StarvedError(RolloutError, RuntimeError):
    """Nothing runs and nothing may start, so the batch can never fill. Not raised while paused."""


class ServerRefusedError(RolloutError, ValueError):
    """An inference server says that the request itself is wrong; repeating it can't help.

    Not raised for a server that is busy, paused, starting or gone.
    """


class ServerUnavailableError(RolloutError, ConnectionError):
    """An inference server gave no usable answer; the same request may succeed later.

    Not raised for an answer that was cut by a weight update: that is `stop_reason == "abort"`.
    """


class GenerationDeadlineError(ServerUnavailableError, TimeoutError):
    """A request did not end within its deadline, all attempts together."""
