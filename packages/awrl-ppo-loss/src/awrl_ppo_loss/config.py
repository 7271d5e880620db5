"""Which policy loss is computed, and with which options.

Invariant: an option that is out of its range, or without effect beside the others, is refused when
the configuration is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from awrl_ppo_loss.arguments import require_choice, require_number
from awrl_ppo_loss.errors import PPOLossError

Objective = Literal["ppo", "gspo", "cispo"]
"""How a token's ratio and advantage become its objective."""

Importance = Literal[
    "token_mask",
    "token_truncate",
    "sequence_mask",
    "sequence_truncate",
    "geometric_mask",
    "geometric_truncate",
    "seq_sum_k1",
    "seq_mean_k1",
]
"""What is the importance weight proximal / behavior, and what happens outside its bounds."""

Aggregation = Literal["token_mean", "sequence_mean", "sequence_sum"]
"""How per-token losses become one number; `count_denominator` says what each divides by."""

KLEstimator = Literal["k1", "k2", "k3"]
"""How the divergence from the reference is estimated per token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyLossConfig:
    """A policy loss and its regularisers.

    Raises:
        PPOLossError: An option is out of its range, or has no effect beside the others.
    """

    objective: Objective = "ppo"
    """`ppo`: clipped per-token ratios (Schulman et al. 2017, arXiv 1707.06347). `gspo`: clipped
    ratios of whole sequences (Zheng et al. 2025, arXiv 2507.18071, which takes `clip_low = 3e-4`,
    `clip_high = 4e-4` and `sequence_mean`). `cispo`: clipped ratios as constant weights of a policy
    gradient, so that no token loses its gradient (MiniMax 2025, arXiv 2506.13585, which takes
    `clip_low = 1`)."""
    clip_low: float = 0.2
    """The update ratio is clipped below at `1 - clip_low`; in [0, 1]."""
    clip_high: float = 0.2
    """The update ratio is clipped above at `1 + clip_high`; >= 0."""
    dual_clip: float | None = None
    """Bounds the update ratio where the advantage is negative (Ye et al. 2020, arXiv 1912.09729);
    above `1 + clip_high`; not with `cispo`."""
    importance: Importance = "token_mask"
    """The weight is the ratio proximal / behavior of the token (`token_*`), the product of the
    ratios of its sequence (`sequence_*`), or their geometric mean (`geometric_*`). Outside
    [weight_floor, weight_cap] it becomes 0 (`*_mask`) or the bound (`*_truncate`). `seq_sum_k1` and
    `seq_mean_k1` keep the token's ratio, and make it 0 throughout a sequence whose product or
    geometric mean lies outside. All but `token_mask` need a bound."""
    weight_floor: float | None = None
    """Smallest importance weight; `None` for no bound."""
    weight_cap: float | None = None
    """Largest importance weight; `None` for no bound."""
    aggregation: Aggregation = "token_mean"
    """Mean over all trainable tokens, mean over sequences of their token means, or mean over
    sequences of their token sums."""
    constant: float | None = None
    """`k`: divides the policy's part of the loss, so that each step of an episode weighs `1/k` in
    place of one over the episode's length (AsyncWebRL, arXiv 2606.05597), or each sequence has a
    length of its own choice (Liu et al. 2025, arXiv 2503.20783); `None` for 1."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus."""
    kl_coefficient: float = 0.0
    """Weight of the penalty for leaving the reference policy; 0 needs no reference."""
    kl_estimator: KLEstimator = "k3"
    """Estimator of KL(current || reference), see `kl_estimate`."""

    def __post_init__(self) -> None:
        require_choice("objective", self.objective, get_args(Objective))
        require_choice("importance", self.importance, get_args(Importance))
        require_choice("aggregation", self.aggregation, get_args(Aggregation))
        require_choice("kl_estimator", self.kl_estimator, get_args(KLEstimator))
        require_number("clip_low", self.clip_low, at_least=0, at_most=1)
        require_number("clip_high", self.clip_high, at_least=0)
        require_number("entropy_coefficient", self.entropy_coefficient, at_least=0)
        require_number("kl_coefficient", self.kl_coefficient, at_least=0)
        if self.constant is not None:
            require_number("constant", self.constant, above=0)
        self._check_dual_clip()
        self._check_weight_bounds()

    @property
    def needs_sequences(self) -> bool:
        """Whether it matters which tokens form a sequence."""
        return (
            self.objective == "gspo"
            or not self.importance.startswith("token")
            or self.aggregation != "token_mean"
        )

    def _check_dual_clip(self) -> None:
        if self.dual_clip is None:
            return
        require_number("dual_clip", self.dual_clip, above=1)
        if self.dual_clip <= 1 + self.clip_high:
            raise PPOLossError(
                f"dual_clip must be > 1 + clip_high = {1 + self.clip_high:g}, got "
                f"{self.dual_clip!r}. It bounds the ratio of tokens with a negative advantage; 3 "
                "is usual."
            )
        if self.objective == "cispo":
            raise PPOLossError(
                f"dual_clip must be None with objective 'cispo', got {self.dual_clip!r}. It bounds "
                "its ratios whatever the advantage."
            )

    def _check_weight_bounds(self) -> None:
        if self.weight_floor is not None:
            require_number("weight_floor", self.weight_floor, at_least=0)
        if self.weight_cap is not None:
            require_number("weight_cap", self.weight_cap, above=self.weight_floor or 0)
        elif self.weight_floor is None and self.importance != "token_mask":
            raise PPOLossError(
                "weight_cap or weight_floor must be a number with importance "
                f"{self.importance!r}, got None. TRL bounds a sequence's weight at 3, verl a "
                "token's at 2."
            )
