"""What of a manager goes into a checkpoint, and what comes back out of it.

After a resume nothing is running: the queue holds what was persisted with the snapshot, and
everything else that was live is lost and has to be enqueued again by the caller. The budget in use
follows from that alone, so capacity never exceeds `(eta + 1) * B` and no unit leaks.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from awrl_staleness.ledger import Entry, Ledger
from awrl_staleness.states import EpisodeState


class EpisodeSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One live episode at the moment of the snapshot."""

    episode_id: str
    group_id: str | None
    label: str | None
    state: EpisodeState
    oldest_version: int
    """-1 before the start."""
    finished_version: int
    """-1 before the end."""


class LedgerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A manager's live episodes, in the order in which they were enqueued."""

    version: int
    episodes: tuple[EpisodeSnapshot, ...]
    num_trained: int
    """Episodes whose batch was settled before the snapshot; for reports only."""


def take_snapshot(ledger: Ledger) -> LedgerSnapshot:
    """Return the ledger's live episodes as plain data."""
    return LedgerSnapshot(
        version=ledger.version,
        num_trained=ledger.tally.num_trained,
        episodes=tuple(
            EpisodeSnapshot(
                episode_id=entry.episode_id,
                group_id=entry.group_id,
                label=entry.label,
                state=entry.state,
                oldest_version=entry.oldest_version,
                finished_version=entry.finished_version,
            )
            for entry in ledger.entries.values()
        ),
    )


def restore_ledger(
    snapshot: LedgerSnapshot, persisted: Collection[str], version: int
) -> tuple[Ledger, tuple[str, ...]]:
    """Return a ledger with the persisted episodes queued, and the ids that were lost.

    Args:
        snapshot: The answer of `take_snapshot`.
        persisted: Ids whose trajectories were saved with the snapshot.
        version: The weight version that the trainer resumed at.

    Returns:
        The ledger, and the ids to enqueue again, in their first order. A persisted episode is lost
        too when it had not finished, or when its tokens come from weights that no longer exist.
    """
    kept_states = (EpisodeState.FINISHED, EpisodeState.CONSUMED)
    ledger = Ledger(version=version)
    ledger.tally.num_trained = snapshot.num_trained
    ledger.tally.num_submitted = snapshot.num_trained
    lost: list[str] = []
    for episode in snapshot.episodes:
        is_kept = (
            episode.episode_id in persisted
            and episode.state in kept_states
            and episode.oldest_version <= version
        )
        if not is_kept:
            lost.append(episode.episode_id)
            continue
        ledger.entries[episode.episode_id] = Entry(
            episode_id=episode.episode_id,
            group_id=None,
            label=episode.label,
            state=EpisodeState.FINISHED,
            started_version=episode.oldest_version,
            oldest_version=episode.oldest_version,
            finished_version=min(episode.finished_version, version),
        )
        ledger.finished += 1
        ledger.tally.num_submitted += 1
    return ledger, tuple(lost)
