"""The `webrl` command."""

from __future__ import annotations

from webrl.cli.main import main

__all__ = ["main"]
