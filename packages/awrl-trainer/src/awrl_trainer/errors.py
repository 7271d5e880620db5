"""Errors of awrl-trainer, one for each reaction.

    BatchError (ValueError)        mend the rows, or the code that makes or hands them out
    PublishError (RuntimeError)    look after the servers, then publish again
    CheckpointError (OSError)      free the disk, or name another checkpoint

A configuration that is out of range raises the builtin `ValueError`: it is the caller's mistake and
is found before anything starts.
"""

from __future__ import annotations

from collections.abc import Sequence


class BatchError(ValueError):
    """Rows, what `collate` made of them, or the rows of two ranks contradict each other.

    A contradiction between ranks, or a `collate` that fails on one, is raised on every rank before the
    collective that would have hung. Not raised for a row without trainable tokens, which is legal and
    weighs nothing, nor for a rank whose process died: the process group's time-out reports that.
    """


class PublishError(RuntimeError):
    """A publish ended without every receiver holding the new version.

    Not raised when at least one receiver holds it: the others are quarantined and the report names
    them.

    Attributes:
        phase: The part of the publish that failed.
        receivers: Names of the receivers that failed.
    """

    def __init__(
        self, message: str, *, phase: str = "publish", receivers: Sequence[str] = ()
    ) -> None:
        self.phase = phase
        self.receivers = tuple(receivers)
        super().__init__(message)


class CheckpointError(OSError):
    """A checkpoint can't be written, or is missing, half-written, damaged, foreign or too new.

    The message says which; raised on every rank, with training as it was.
    """
