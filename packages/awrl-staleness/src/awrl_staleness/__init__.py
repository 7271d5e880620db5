"""Decides when one more rollout episode may start and whether it may be trained on."""

from __future__ import annotations

from awrl_staleness.config import StalenessConfig
from awrl_staleness.errors import StalenessError
from awrl_staleness.manager import StalenessManager
from awrl_staleness.statistics import STALENESS, Capacity, StalenessStatistics

__all__ = [
    "Capacity",
    "STALENESS",
    "StalenessConfig",
    "StalenessError",
    "StalenessManager",
    "StalenessStatistics",
]
