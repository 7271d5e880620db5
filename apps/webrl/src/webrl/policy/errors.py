"""Errors of the policy package.

```
PolicyError (ValueError)
+-- CheckpointError      a directory is not a usable policy checkpoint
+-- PromptError          a prompt and its images do not fit together
```
"""

from __future__ import annotations

from webrl.errors import PolicyError


class CheckpointError(PolicyError):
    """A directory lacks what a policy needs; not raised for weights that fail to load."""


class PromptError(PolicyError):
    """Token ids and images of one row disagree; not raised for images that fail to decode."""
