"""How the policy is asked in the episodes of a worker."""

from __future__ import annotations

from dataclasses import dataclass

from webrl.actions import ActionMode


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowConfig:
    """How the policy is asked."""

    temperature: float = 1.0
    """Sampling temperature of training episodes."""
    top_p: float = 1.0
    """Nucleus mass."""
    max_new_tokens: int = 64
    """Most tokens of one action."""
    history_window: int = 1
    """Screenshots in one prompt, the newest last."""
    media_type: str = "image/png"
    """Media type of the screenshots."""
    action_mode: ActionMode = "coordinates"
    """How an action says where; the pool's screenshots are numbered where it is `set_of_marks`."""
    page_latency_s: float = 0.0
    """Mean of an artificial wait before each action, in seconds."""
    page_latency_cv: float = 1.0
    """Coefficient of variation of that wait."""
