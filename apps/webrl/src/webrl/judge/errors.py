"""The one error of the judge.

    webrl.errors.WebRLError
    `- JudgeError  no verdict was given: the server failed, was late, or did not answer in form

It is a fault of the infrastructure and never a reward. It is not raised for an episode that the
judge finds wanting, nor for a site that blocks: those are verdicts.
"""

from __future__ import annotations

from webrl.errors import WebRLError


class JudgeError(WebRLError, RuntimeError):
    """There is no verdict. The message never holds the key that opens the server."""
