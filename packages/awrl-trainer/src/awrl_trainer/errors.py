"""Errors of awrl-trainer.

::

    TrainerError
    |-- BatchError (ValueError)              rows or a collated batch that do not fit together
    |-- RanksDisagreeError (RuntimeError)    ranks were given different work
    |-- ManifestMismatchError (ValueError)   a receiver names, types or shapes weights otherwise
    |-- PublishError (RuntimeError)          a publish that did not reach every receiver
    |   `-- PublishTimeoutError (TimeoutError)   a part of the window passed its deadline
    `-- CheckpointError (OSError)            a checkpoint that is missing, incomplete or foreign

A configuration that is out of range raises the builtin ``ValueError``: it is the caller's mistake
and is found before anything starts.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

__all__ = [
    "BatchError",
    "CheckpointError",
    "ManifestMismatchError",
    "PublishError",
    "PublishTimeoutError",
    "RanksDisagreeError",
    "TrainerError",
]


class TrainerError(Exception):
    """Root of every error that this package raises by itself."""


class BatchError(TrainerError, ValueError):
    """Rows, or what `collate` made of them, contradict each other.

    Not raised for a row without trainable tokens: such a row is legal and weighs nothing.
    """


class RanksDisagreeError(TrainerError, RuntimeError):
    """Ranks were called with different rows, or one of them failed before a collective.

    Raised on *every* rank, before the collective that would have hung. Not raised for a rank whose
    process died: the process group's own time-out reports that.
    """


class ManifestMismatchError(TrainerError, ValueError):
    """A receiver's weight index differs from what would be sent; nothing was sent.

    Attributes:
        receiver: Name of the receiver.
        unknown: Names that the trainer would send and the receiver does not have.
        missing: Names that the receiver has and the trainer would not send.
        different: ``name: sent, held`` for other dtypes or shapes.
    """

    def __init__(
        self,
        receiver: str,
        *,
        unknown: Sequence[str] = (),
        missing: Sequence[str] = (),
        different: Sequence[str] = (),
    ) -> None:
        self.receiver = receiver
        self.unknown = tuple(unknown)
        self.missing = tuple(missing)
        self.different = tuple(different)
        super().__init__(
            f"weights of receiver {receiver!r} must be those of the trainer, got"
            f" unknown to the receiver: {_shorten(unknown)}; not sent: {_shorten(missing)};"
            f" other dtype or shape: {_shorten(different)}. Start the server from the trainer's base"
            " checkpoint, or pass a rename function to the manifest."
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by the parts: errors travel between processes."""
        parts = {"unknown": self.unknown, "missing": self.missing, "different": self.different}
        return functools.partial(type(self), **parts), (self.receiver,)


class PublishError(TrainerError, RuntimeError):
    """A publish ended without every receiver holding the new version.

    Not raised when at least one receiver holds it: the others are quarantined and the report names
    them.

    Attributes:
        phase: The part of the window that failed.
        receivers: Names of the receivers that failed.
    """

    def __init__(
        self, message: str, *, phase: str = "publish", receivers: Sequence[str] = ()
    ) -> None:
        self.phase = phase
        self.receivers = tuple(receivers)
        super().__init__(message)


class PublishTimeoutError(PublishError, TimeoutError):
    """A part of the publish window passed its deadline."""


class CheckpointError(TrainerError, OSError):
    """A checkpoint is missing, half-written, or belongs to another model."""


def _shorten(names: Sequence[str], limit: int = 8) -> str:
    """Return at most `limit` of the names as text, and how many more there are."""
    if not names:
        return "none"
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(repr(name) for name in names[:limit]) + more
