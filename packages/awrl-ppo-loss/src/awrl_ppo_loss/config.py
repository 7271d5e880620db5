"""One frozen value that names a policy loss and its options, for trainers that read it from a file.

Invariants: an option that the chosen objective does not know is refused, not ignored; `None` means
the objective's own default; what the value holds is checked when it is made.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal, get_args

from torch import Tensor

from awrl_ppo_loss.aggregation import Aggregation, require_aggregation
from awrl_ppo_loss.arguments import require_choice
from awrl_ppo_loss.cispo import cispo_loss
from awrl_ppo_loss.decoupled import decoupled_ppo_loss, ppo_loss
from awrl_ppo_loss.errors import OptionError
from awrl_ppo_loss.gspo import gspo_loss
from awrl_ppo_loss.importance_sampling import masked_is_loss, truncated_is_loss
from awrl_ppo_loss.options import require_cap, require_clip, require_weight_range
from awrl_ppo_loss.output import LossOutput
from awrl_ppo_loss.ratios import WeightAction

Objective = Literal["decoupled_ppo", "ppo", "truncated_is", "masked_is", "gspo", "cispo"]
"""Name of a policy loss; the function is `<name>_loss`."""

_LOSSES: dict[str, Callable[..., LossOutput]] = {
    "decoupled_ppo": decoupled_ppo_loss,
    "ppo": ppo_loss,
    "truncated_is": truncated_is_loss,
    "masked_is": masked_is_loss,
    "gspo": gspo_loss,
    "cispo": cispo_loss,
}

_COMMON = frozenset({"clip_low", "clip_high", "aggregation", "constant"})
_CAP = frozenset({"behav_imp_weight_cap", "behav_imp_weight_action"})

_OPTIONS: dict[str, frozenset[str]] = {
    "decoupled_ppo": _COMMON | _CAP | {"dual_clip"},
    "ppo": _COMMON | {"dual_clip"},
    "truncated_is": _COMMON | {"dual_clip", "weight_high"},
    "masked_is": _COMMON | {"dual_clip", "weight_low", "weight_high"},
    "gspo": _COMMON | _CAP | {"dual_clip"},
    "cispo": _COMMON | _CAP,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyLossConfig:
    """A policy loss by name, with its options; `None` takes the objective's default."""

    objective: Objective = "decoupled_ppo"
    """Which loss."""
    clip_low: float | None = None
    """The update ratio is clipped below at `1 - clip_low`."""
    clip_high: float | None = None
    """The update ratio is clipped above at `1 + clip_high`."""
    dual_clip: float | None = None
    """Bounds the update ratio where the advantage is negative; `None` for no bound."""
    behav_imp_weight_cap: float | None = None
    """Largest staleness weight; `None` for no cap."""
    behav_imp_weight_action: WeightAction | None = None
    """What the cap does to a weight above it."""
    weight_low: float | None = None
    """Smallest staleness weight that counts (`masked_is`)."""
    weight_high: float | None = None
    """Largest staleness weight (`truncated_is`, `masked_is`)."""
    aggregation: Aggregation | None = None
    """How per-token losses become one number."""
    constant: float | None = None
    """`k` of the constant aggregations."""

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            OptionError: The objective is unknown or does not know an option, or an option is
                outside its range.
        """
        require_choice("objective", self.objective, get_args(Objective))
        options = self.options()
        for name in options:
            if name not in _OPTIONS[self.objective]:
                raise OptionError(
                    f"{name} must be None with objective {self.objective!r}, got "
                    f"{options[name]!r}. It has no such option."
                )
        require_clip(
            0.2 if self.clip_low is None else self.clip_low,
            0.2 if self.clip_high is None else self.clip_high,
            self.dual_clip,
        )
        require_cap(self.behav_imp_weight_cap, self.behav_imp_weight_action or "mask")
        require_weight_range(
            1.0 if self.weight_low is None else self.weight_low,
            1.0 if self.weight_high is None else self.weight_high,
        )
        require_aggregation(self.aggregation or "token_mean", self.constant)

    def options(self) -> dict[str, float | str]:
        """Return the options that are set, as keyword arguments of the loss."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        del values["objective"]
        return {name: value for name, value in values.items() if value is not None}

    @property
    def needs_proximal(self) -> bool:
        """Whether the loss takes proximal log-probs."""
        return self.objective != "ppo"


def policy_loss(
    config: PolicyLossConfig,
    *,
    current_logprobs: Tensor,
    behavior_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    proximal_logprobs: Tensor | None = None,
    denominator: float | Tensor | None = None,
    sequence_ids: Tensor | None = None,
) -> LossOutput:
    """Return the loss that the configuration names.

    Args:
        config: Which loss, with its options.
        current_logprobs: Floating `[B, T]` or packed `[T]`; the only one with a gradient.
        behavior_logprobs: Same shape.
        advantages: Same shape.
        mask: Bool of the same shape, true at trainable tokens.
        proximal_logprobs: Same shape; `None` exactly for objective `ppo`.
        denominator: Global count; `None` counts this call's own.
        sequence_ids: Integers of the mask's shape; needed when packed sequences matter.

    Returns:
        What the loss returns.

    Raises:
        OptionError: Proximal log-probs are missing or superfluous.
        ArgumentError: A shape, a device or the denominator is wrong, or arguments look swapped.
        ArgumentTypeError: A dtype is wrong.
    """
    if config.needs_proximal != (proximal_logprobs is not None):
        rule = "given" if config.needs_proximal else "None"
        raise OptionError(
            f"proximal_logprobs must be {rule} with objective {config.objective!r}, got "
            f"{'None' if proximal_logprobs is None else 'a tensor'}. Choose the objective by "
            "whether there is a proximal policy."
        )
    arguments = {"current_logprobs": current_logprobs, "behavior_logprobs": behavior_logprobs}
    if proximal_logprobs is not None:
        arguments["proximal_logprobs"] = proximal_logprobs
    return _LOSSES[config.objective](
        **arguments,
        advantages=advantages,
        mask=mask,
        denominator=denominator,
        sequence_ids=sequence_ids,
        **config.options(),
    )
