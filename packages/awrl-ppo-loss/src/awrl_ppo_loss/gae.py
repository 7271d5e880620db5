"""Generalised advantage estimation over the *turns* of an episode, and from turns to tokens.

Invariants:
* the time step is a turn (one action of the agent), however many tokens it has;
* a masked turn is skipped, as if its neighbours were adjacent, and may hold anything;
* with `discount = gae_lambda = 1` and no values every turn gets the rewards still to come.

Legend: `B` episodes, `K` turns, `T` tokens.
"""

import torch
from torch import Tensor

from awrl_ppo_loss.arguments import (
    require_integers,
    require_mask,
    require_number,
    require_tokens,
)
from awrl_ppo_loss.errors import ArgumentError
from awrl_ppo_loss.selection import upcast


@torch.no_grad()
def turn_gae(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    discount: float = 1.0,
    gae_lambda: float = 1.0,
    bootstrap_values: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return advantages and returns of every turn.

    `A_k = delta_k + discount gae_lambda A_next`, `delta_k = r_k + discount V_next - V_k`: Schulman
    et al. 2016 (arXiv 1506.02438), equation 16.

    Args:
        rewards: Floating `[B, K]`, or `[K]` of one episode: the reward that ended each turn.
        values: Same shape: the critic's value of the state before each turn.
        mask: Bool of the same shape, true at turns that happened.
        discount: In [0, 1].
        gae_lambda: In [0, 1].
        bootstrap_values: Floating `[B]` (scalar for `[K]`): value of the state after the last turn
            of an episode that was cut; `None` means that every episode ended.

    Returns:
        Advantages and returns (`advantage + value`, the critic's target) of the same shape, 0 at
        masked turns, without gradient.

    Raises:
        ArgumentError: Shapes differ.
        ArgumentTypeError: A dtype is wrong.
        OptionError: `discount` or `gae_lambda` is outside [0, 1].
    """
    require_number("discount", discount, at_least=0, at_most=1)
    require_number("gae_lambda", gae_lambda, at_least=0, at_most=1)
    require_mask(mask)
    require_tokens("rewards", rewards, mask)
    require_tokens("values", values, mask)
    reward = torch.where(mask, upcast(rewards), 0.0)
    value = torch.where(mask, upcast(values), 0.0)
    next_value = torch.zeros_like(value[..., :1].sum(dim=-1))
    if bootstrap_values is not None:
        require_tokens("bootstrap_values", bootstrap_values, mask[..., :1].any(dim=-1))
        next_value = next_value + bootstrap_values
    next_advantage = torch.zeros_like(next_value)
    advantages = torch.zeros_like(value)
    for turn in reversed(range(mask.shape[-1])):
        delta = reward[..., turn] + discount * next_value - value[..., turn]
        advantage = delta + discount * gae_lambda * next_advantage
        happened = mask[..., turn]
        next_value = torch.where(happened, value[..., turn], next_value)
        next_advantage = torch.where(happened, advantage, next_advantage)
        advantages[..., turn] = torch.where(happened, advantage, 0.0)
    return advantages, advantages + value


def spread_to_tokens(turn_values: Tensor, turn_ids: Tensor) -> Tensor:
    """Give every token the value of its turn.

    Args:
        turn_values: Floating `[B, K]`, or `[K]` of one episode.
        turn_ids: Integers `[B, T]`, or `[T]`: the turn of each token, negative for none (prompts,
            observations, padding).

    Returns:
        `[B, T]` or `[T]`, 0 at tokens without a turn.

    Raises:
        ArgumentError: Shapes do not fit, or a turn id is too large.
        ArgumentTypeError: The ids are not integers.
    """
    ids = require_integers("turn_ids", turn_ids).long()
    if ids.dim() != turn_values.dim() or ids.shape[:-1] != turn_values.shape[:-1]:
        raise ArgumentError(
            f"turn_ids must be [B, T] beside turn_values [B, K], got {list(ids.shape)} beside "
            f"{list(turn_values.shape)}. Give both the same episodes."
        )
    num_turns = turn_values.shape[-1]
    if ids.device.type == "cpu" and bool((ids >= num_turns).any()):
        raise ArgumentError(
            f"turn_ids must be below the number of turns {num_turns}, got {int(ids.max())}. Count "
            "turns from 0."
        )
    if num_turns == 0:
        return torch.zeros(ids.shape, dtype=turn_values.dtype, device=turn_values.device)
    values = turn_values.gather(-1, ids.clamp(min=0))
    return torch.where(ids >= 0, values, 0.0)
