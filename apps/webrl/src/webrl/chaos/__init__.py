"""Kills processes of a real run and looks whether anything was lost: `python -m webrl.chaos`."""

from webrl.chaos.torment import Blow, Outcome, Strike, torment
from webrl.chaos.verdict import Verdict, examine
from webrl.chaos.victims import CONTROLLER, KINDS, find_victims

__all__ = [
    "CONTROLLER",
    "KINDS",
    "Blow",
    "Outcome",
    "Strike",
    "Verdict",
    "examine",
    "find_victims",
    "torment",
]
