"""Which split of the devices and which eta is best, and what one number has to be to fit a figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from webrl.config import WebRLConfig
from webrl.errors import ConfigError
from webrl.simulate.assumptions import Assumptions, with_settings
from webrl.simulate.figures import ModeFigures
from webrl.simulate.pools import simulate_asynchronous
from webrl.simulate.simulation import DeviceLayout

ETAS = (0, 1, 2, 4)
"""Bounds that a sweep tries."""
_NUM_SPLITS = 8
"""Parts into which the devices are cut."""
_TIE = 0.01
"""Throughputs closer than this are equal: the fresher one wins."""
_FIT_ROUNDS = 8
"""Interpolations of a fit at most; two or three are usual."""
_CLOSE = 0.005
"""A fit this near is done: below a simulation's own noise."""
_WIDEST = 64.0
"""Largest factor of a fit, either way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPoint:
    """One split and one eta."""

    layout: DeviceLayout
    eta: int
    figures: ModeFigures


def splits(config: WebRLConfig) -> list[DeviceLayout]:
    """Return the ways to divide the devices; the configuration's own alone without GPUs."""
    own = DeviceLayout.of(config)
    if config.cluster.num_gpus == 0:
        return [own]
    total = own.num_servers + own.num_ranks
    part = max(1, total // _NUM_SPLITS)
    found = {own.num_servers, *range(part, total, part)}
    return [DeviceLayout(num_servers=n, num_ranks=total - n) for n in sorted(found)]


def with_split(config: WebRLConfig, layout: DeviceLayout, eta: int, num_steps: int) -> WebRLConfig:
    """Return the configuration on another split.

    Args:
        config: An asynchronous configuration.
        layout: Devices of each role.
        eta: Staleness bound.

    Raises:
        ConfigError: The combination is not one that could run.
    """
    backend = config.allocation.role("rollout").backend
    joined = "|" if config.allocation.shares_devices("rollout", "actor") else "+"
    text = f"{backend}[rollout]:d{layout.num_servers}{joined}fsdp[actor]:d{layout.num_ranks}"
    return replace(
        config,
        allocation_mode=text,
        cluster=replace(config.cluster, n_inference_servers=layout.num_servers),
        rollout=replace(config.rollout, max_head_offpolicyness=eta),
        total_steps=num_steps,
    )


def sweep(config: WebRLConfig, assumptions: Assumptions, num_steps: int) -> Iterator[SweepPoint]:
    """Simulate every split with every eta, one after the other.

    Args:
        config: An asynchronous configuration.
        assumptions: The model, and the trace if there is one.
        num_steps: Steps of each simulation.
    """
    plans = assumptions.trace.plans if assumptions.trace else None
    for layout in splits(config):
        for eta in ETAS:
            try:
                one = with_split(config, layout, eta, num_steps)
            except ConfigError:
                continue  # a split that no run could have
            recording = simulate_asynchronous(one, assumptions.model, plans)
            yield SweepPoint(layout=layout, eta=eta, figures=recording.figures())


def best_point(points: list[SweepPoint]) -> SweepPoint:
    """Return the point that trains on most episodes an hour; of equal ones the smallest eta."""
    most = max(point.figures.trained_per_h for point in points)
    near = [point for point in points if point.figures.trained_per_h >= (1.0 - _TIE) * most]
    return min(near, key=lambda point: (point.eta, -point.figures.trained_per_h))


def fit(
    config: WebRLConfig,
    assumptions: Assumptions,
    *,
    keys: list[str],
    target: float,
    figure: Callable[[ModeFigures], float],
) -> tuple[Assumptions, float]:
    """Return the assumptions with some numbers scaled by one factor so that a figure is met.

    Args:
        config: An asynchronous configuration.
        assumptions: Where to start.
        keys: `section.key` of the numbers; all get the same factor.
        target: What the figure has to be.
        figure: Grows with the numbers.

    Raises:
        ConfigError: No factor meets the target.
        RunFailedError: A simulated run had to stop, as episodes miss their deadline for example.
    """

    def scaled(factor: float) -> Assumptions:
        settings: list[str] = []
        for key in keys:
            section, _, name = key.partition(".")
            value = getattr(getattr(assumptions.model, section), name)
            settings.append(f"{key}={value * factor!r}")
        return replace(assumptions, model=with_settings(assumptions.model, settings))

    def reached(factor: float) -> float:
        return figure(simulate_asynchronous(config, scaled(factor).model).figures())

    low = high = (1.0, reached(1.0))
    while high[1] < target and high[0] < _WIDEST:
        low, high = high, (2.0 * high[0], reached(2.0 * high[0]))
    while low[1] > target and low[0] > 1.0 / _WIDEST:
        low, high = (low[0] / 2.0, reached(low[0] / 2.0)), low
    if not low[1] <= target <= high[1]:
        raise ConfigError(
            f"the fitted figure must be able to reach {target:g}, got {low[1]:g} to {high[1]:g} with "
            f"{', '.join(keys)} scaled by {low[0]:g} to {high[0]:g}. Fit other keys."
        )
    factor = low[0]
    for _ in range(_FIT_ROUNDS):
        share = math.log(target / low[1]) / max(1e-12, math.log(high[1] / low[1]))
        factor = low[0] * (high[0] / low[0]) ** min(0.95, max(0.05, share))
        value = reached(factor)
        if abs(value / target - 1.0) < _CLOSE:
            break
        if value < target:
            low = (factor, value)
        else:
            high = (factor, value)
    return scaled(factor), factor
