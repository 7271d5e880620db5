"""Kills processes of a real run and looks whether anything was lost: `make chaos`."""

from __future__ import annotations

from chaos.injection import ChaosOutcome, InjectedFault, Injection, inject_faults
from chaos.targets import CONTROLLER, KINDS, find_targets
from chaos.verdict import RunVerdict, examine

__all__ = [
    "CONTROLLER",
    "ChaosOutcome",
    "InjectedFault",
    "Injection",
    "KINDS",
    "RunVerdict",
    "examine",
    "find_targets",
    "inject_faults",
]
