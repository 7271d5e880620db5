"""The common frame of every policy loss: check, flatten, reduce, attach the derivative.

Invariants:
* each loss computes its derivative by `current_logprobs` beside its value, under `no_grad`, and
  `gradcheck` in the tests holds the two together; so nothing else can receive a gradient, and one
  vector `[N]` is all that the backward pass needs;
* the loss is `- sum of weight * objective / (denominator * constant)`, in float64;
* an unmasked NaN or infinity makes the loss and the whole gradient NaN.

Legend: `B` sequences, `T` tokens, `N` positions flattened.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from awrl_ppo_loss.aggregation import Aggregation, Reduction, prepare_reduction
from awrl_ppo_loss.arguments import require_gradient_owner, require_mask, require_tokens
from awrl_ppo_loss.selection import Selection


@dataclass(frozen=True, slots=True)
class PolicyBatch:
    """Checked arguments of a policy loss.

    All but `current` are flattened, without gradient, and in float32, or float64 if one of them is:
    a bfloat16 difference of log-probs is no ratio.
    """

    current: Tensor
    """Current log-probs as given, `[B, T]` or `[T]`, with their gradient."""
    current_values: Tensor
    """The same, `[N]`, without gradient."""
    proximal: Tensor
    """Proximal log-probs `[N]`; the behavior ones for a coupled loss."""
    behavior: Tensor
    """Behavior log-probs `[N]`."""
    advantages: Tensor
    """Advantages `[N]`, 0 at masked positions."""
    selection: Selection
    """Trainable positions."""
    reduction: Reduction
    """How per-token values become the loss."""


def prepare_batch(
    current_logprobs: Tensor,
    proximal_logprobs: Tensor | None,
    behavior_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    aggregation: Aggregation,
    denominator: float | Tensor | None,
    sequence_ids: Tensor | None,
    constant: float | None,
) -> PolicyBatch:
    """Refuse wrong shapes, dtypes, devices, options and swapped arguments; flatten the rest.

    Raises:
        ArgumentError: A shape, a device or the denominator is wrong, or arguments look swapped.
        ArgumentTypeError: The mask is not bool, or another argument is not floating.
        OptionError: The aggregation is unknown or its constant does not fit.
    """
    require_mask(mask)
    require_tokens("current_logprobs", current_logprobs, mask)
    constants = {"behavior_logprobs": behavior_logprobs, "advantages": advantages}
    if proximal_logprobs is not None:
        constants["proximal_logprobs"] = proximal_logprobs
    for name, value in constants.items():
        require_tokens(name, value, mask)
    require_gradient_owner(current_logprobs, constants)
    flat = {name: value.detach().reshape(-1) for name, value in constants.items()}
    current, behavior = current_logprobs.detach().reshape(-1), flat["behavior_logprobs"]
    is_double = any(value.dtype == torch.float64 for value in (current, *flat.values()))
    dtype = torch.float64 if is_double else torch.float32
    selection = Selection(mask)
    return PolicyBatch(
        current=current_logprobs,
        current_values=current.to(dtype),
        proximal=flat.get("proximal_logprobs", behavior).to(dtype),
        behavior=behavior.to(dtype),
        advantages=selection.keep(flat["advantages"].to(dtype)),
        selection=selection,
        reduction=prepare_reduction(
            mask,
            aggregation=aggregation,
            denominator=denominator,
            sequence_ids=sequence_ids,
            constant=constant,
            num_tokens=selection.num_tokens,
        ),
    )


def surrogate_loss(
    batch: PolicyBatch, objective: Tensor, derivative: Tensor, log_sums: Tensor
) -> Tensor:
    """Return the loss, minus the weighted objective, with its gradient by the current log-probs.

    Args:
        batch: The checked arguments.
        objective: Per-token objective `[N]`, 0 at masked positions, before any sequence weight.
        derivative: Derivative of the *weighted* objectives' sum by each current log-prob, `[N]`, 0
            at masked positions.
        log_sums: Finite unless the data are broken.

    Returns:
        Float64 scalar.
    """
    # 0 for honest data; NaN for broken ones, and then so are the loss and its gradient.
    witness = log_sums.sum() * 0.0
    scale = witness - 1.0 / batch.reduction.divisor
    total = batch.reduction.weigh(objective).sum(dtype=torch.float64)
    # 0.0 + turns the -0.0 of a batch without trainable tokens into 0.0.
    loss = _AttachDerivative.apply(batch.current, 0.0 + total * scale, derivative, scale)
    assert isinstance(loss, Tensor)
    return loss


class _AttachDerivative(torch.autograd.Function):
    """A finished number as function of the current log-probs, with a given derivative."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        current: Tensor,
        loss: Tensor,
        derivative: Tensor,
        scale: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(derivative, scale)
        ctx.shape, ctx.dtype = current.shape, current.dtype  # type: ignore[attr-defined]
        return loss.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: torch.autograd.function.FunctionCtx, grad_output: Tensor
    ) -> tuple[Tensor, None, None, None]:
        derivative, scale = ctx.saved_tensors  # type: ignore[attr-defined]
        grad = derivative * (grad_output * scale)
        return grad.to(ctx.dtype).reshape(ctx.shape), None, None, None  # type: ignore[attr-defined]
