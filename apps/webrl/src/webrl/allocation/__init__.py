"""The `allocation_mode` string: its grammar and what it means."""

from __future__ import annotations

from webrl.allocation.reader import parse_allocation
from webrl.allocation.values import Allocation, Backend, Component, Dims, Role

__all__ = ["Allocation", "Backend", "Component", "Dims", "Role", "parse_allocation"]
