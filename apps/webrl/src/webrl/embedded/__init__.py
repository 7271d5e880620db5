"""The embedded inference server: SGLang's HTTP over HF transformers, for machines without SGLang.

`python -m webrl.embedded --model-path DIR --port N` runs one.
"""

from __future__ import annotations

from webrl.embedded.config import EmbeddedServerConfig

__all__ = ["EmbeddedServerConfig"]
