"""From a configuration, a recorded run and `model.` settings to one checked model.

The order: defaults for the kind of machine, then what the configuration says, then the trace, then
settings. Every value is listed in the report, so nothing is assumed in silence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from webrl.config import OverrideText, WebRLConfig, build_section, field_docs
from webrl.errors import ConfigError, Problem
from webrl.simulate.model import SimulationModel
from webrl.simulate.trace import RunTrace, read_trace

PREFIX = "model."
"""What a setting of the model starts with; all others are the configuration's."""

_LAPTOP = (
    "episode.step_s=0.06",
    "episode.step_tokens=4",
    "episode.step_tokens_cv=0.2",
    "episode.reset_s=0.05",
    "server.token_s=0.004",
    "server.crowding=0.2",
    "server.prefill_tokens=2",
    "trainer.row_s=0.003",
    "trainer.fixed_s=0.1",
    "publish.window_s=0.06",
    "session.open_s=0.2",
    "session.opens_at_once=1",
    "session.dispatch_s=0.01",
)
"""A tiny policy on two cores: orders of magnitude only; a trace of the machine is the better guide."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Assumptions:
    """What a simulation runs on."""

    model: SimulationModel
    """Every number."""
    trace: RunTrace | None
    """The recorded run; its episodes replace the episode model."""


def resolve_assumptions(
    config: WebRLConfig, settings: Sequence[str], run: Path | None
) -> Assumptions:
    """Return the model of a configuration.

    Args:
        settings: `section.key=value`, without the prefix; they win.
        run: Folder of a recorded run, None for none.

    Raises:
        ConfigError: A setting is unknown or out of its range, or the run holds no trace.
    """
    is_laptop = config.allocation.role("rollout").backend == "embedded"
    known = [
        f"episode.max_steps={config.most_steps}",
        f"server.max_running={config.inference.max_running_requests}",
    ]
    if config.env.page_latency_s > 0:
        known += [
            f"episode.step_s={config.env.page_latency_s}",
            f"episode.step_cv={config.env.page_latency_cv}",
        ]
    model = with_settings(SimulationModel(), [*(_LAPTOP if is_laptop else ()), *known])
    trace = None if run is None else read_trace(run, model)
    model = with_settings(model if trace is None else trace.model, settings)
    return Assumptions(model=model, trace=trace)


def with_settings(model: SimulationModel, settings: Sequence[str]) -> SimulationModel:
    """Return the model with `section.key=value` settings applied.

    Raises:
        ConfigError: A setting is malformed, unknown or out of its range.
    """
    tree = {
        section: {name: value for name, value in part.items() if value is not None}
        for section, part in dataclasses.asdict(model).items()
    }
    problems: list[Problem] = []
    for setting in settings:
        key, equals, text = setting.partition("=")
        section, _, name = key.strip().partition(".")
        if not equals or not name or section not in tree:
            sections = ", ".join(f"{PREFIX}{known}" for known in tree)
            message = f"must be section.key=value of {sections}, got {setting!r}. See --help."
            problems.append(Problem(key=PREFIX + key, message=message))
            continue
        tree[section][name] = OverrideText(text.strip())
    built = build_section(SimulationModel, tree, PREFIX.rstrip("."), problems)
    if built is None or problems:
        raise ConfigError(problems)
    return built


def described(model: SimulationModel) -> Iterator[tuple[str, str, str]]:
    """Return key, value and meaning of every assumption."""
    for section in dataclasses.fields(model):
        part = getattr(model, section.name)
        docs = field_docs(type(part))
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            yield f"{PREFIX}{section.name}.{field.name}", _text(value), docs[field.name]


def _text(value: float | bool | None) -> str:
    if value is None:
        return "unset"
    return str(value).lower() if isinstance(value, bool) else f"{value:.6g}"
