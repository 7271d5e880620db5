"""The package's root logger: it has a handler that drops, so a library never prints by itself."""

from __future__ import annotations

import logging

LOGGER_NAME = "awrl_rollout"
"""Attach handlers and levels to the logger of this name."""

logging.getLogger(LOGGER_NAME).addHandler(logging.NullHandler())
