"""The asynchronous loop in virtual time: what a configuration would reach, and why not more.

The ledger, the executors, the controller, the synchronous pool, the task order and the filter are
those of a run; servers, browsers, updates and broadcasts are models or recordings.
"""

from __future__ import annotations

from webrl.simulate.assumptions import Assumptions, resolve_assumptions, with_settings
from webrl.simulate.figures import ModeFigures, Recording
from webrl.simulate.model import SimulationModel
from webrl.simulate.plans import hazard_of_mean
from webrl.simulate.pools import simulate_asynchronous, simulate_synchronous
from webrl.simulate.report import (
    assumptions_table,
    figures_table,
    measured_table,
    sweep_table,
)
from webrl.simulate.simulation import DeviceLayout
from webrl.simulate.sweep import SweepPoint, best_point, fit, splits, sweep, with_split
from webrl.simulate.timeline import write_timeline
from webrl.simulate.trace import RunTrace, read_trace

__all__ = [
    "Assumptions",
    "DeviceLayout",
    "ModeFigures",
    "Recording",
    "RunTrace",
    "SimulationModel",
    "SweepPoint",
    "assumptions_table",
    "best_point",
    "figures_table",
    "fit",
    "hazard_of_mean",
    "measured_table",
    "read_trace",
    "resolve_assumptions",
    "simulate_asynchronous",
    "simulate_synchronous",
    "splits",
    "sweep",
    "sweep_table",
    "with_settings",
    "with_split",
    "write_timeline",
]
