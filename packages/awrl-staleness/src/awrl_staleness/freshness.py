"""The hard check: may this trajectory still be trained on?

Staleness is judged on the oldest *trainable* token. Prompt positions carry a placeholder version
and are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from awrl_staleness.errors import ConfigError


class VersionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """The weight versions that sampled one trajectory's trainable tokens."""

    oldest: int
    newest: int

    @classmethod
    def of(cls, versions: Sequence[int], mask: Iterable[bool] | None = None) -> VersionSpan | None:
        """Return the span over the trainable positions, None when there is none.

        Args:
            versions: One weight version per token; any placeholder where not trainable.
            mask: Whether each token is trainable; None means every token whose version is >= 0.

        Raises:
            ConfigError: `mask` and `versions` differ in length.
        """
        if mask is None:
            chosen = [version for version in versions if version >= 0]
        else:
            flags = list(mask)
            if len(flags) != len(versions):
                raise ConfigError(
                    f"mask must be as long as versions ({len(versions)}), got {len(flags)}. "
                    "Give one flag per token."
                )
            chosen = [version for version, flag in zip(versions, flags, strict=True) if flag]
        return cls(oldest=min(chosen), newest=max(chosen)) if chosen else None


def off_policyness(oldest_version: int, current_version: int) -> int:
    """Return how many versions the oldest token lies behind, 0 when it is ahead."""
    return max(0, current_version - oldest_version)


def is_fresh(oldest_version: int, current_version: int, max_off_policyness: int) -> bool:
    """Return True iff `current_version - oldest_version <= max_off_policyness`."""
    return current_version - oldest_version <= max_off_policyness


def is_last_chance(oldest_version: int, current_version: int, max_off_policyness: int) -> bool:
    """Return True iff the trajectory expires when the next version is published."""
    return current_version - oldest_version >= max_off_policyness
