"""Errors of the embedded server; each becomes one HTTP answer with its text.

EmbeddedServerError
|-- BadRequestError   (ValueError)    the body of a request is wrong: 400, nothing was started
|-- WeightUpdateError (RuntimeError)  a weight update was refused: 400, weights untouched
`-- WeightGroupError  (RuntimeError)  a broadcast group failed: 400, weights untouched
"""

from __future__ import annotations

from webrl.errors import WebRLError

__all__ = ["BadRequestError", "EmbeddedServerError", "WeightGroupError", "WeightUpdateError"]


class EmbeddedServerError(WebRLError):
    """Root of what the embedded server refuses on purpose."""


class BadRequestError(EmbeddedServerError, ValueError):
    """The request is wrong as it stands. Not raised for a server that is paused or busy."""


class WeightUpdateError(EmbeddedServerError, RuntimeError):
    """Names, shapes, dtypes or files do not fit the model. The weights are as before."""


class WeightGroupError(EmbeddedServerError, RuntimeError):
    """A broadcast group could not be joined, or its broadcast failed. The weights are as before."""
