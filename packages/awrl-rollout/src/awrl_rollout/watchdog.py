"""Who waits for whom, as one sentence. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from awrl_rollout.statistics import SlotView


def describe_wait(
    *,
    num_missing: int,
    waiting_s: float,
    num_slots: int,
    views: Iterable[SlotView],
    stuck_after_s: float,
    situation: str,
) -> str:
    """Return what the trainer waits for, and where most of the slots are stuck.

    Args:
        num_missing: Episodes that the trainer still waits for.
        waiting_s: How long it has waited.
        num_slots: Slots over all live workers.
        views: What the busy slots do.
        stuck_after_s: Slots that stay longer in one stage count as stuck.
        situation: What to say when no slot is stuck.
    """
    head = f"trainer waits for {num_missing} episodes since {waiting_s:.0f} s"
    stuck = Counter((view.stage, view.site) for view in views if view.for_s >= stuck_after_s)
    if not stuck:
        return f"{head}; no slot is stuck: {situation}"
    parts: list[str] = []
    for (stage, site), count in stuck.most_common(3):
        where = f" at site {site}" if site else ""
        parts.append(f"{count} of {num_slots} slots are in `{stage}`{where}")
    return f"{head}; {', '.join(parts)} for more than {stuck_after_s:.0f} s"
