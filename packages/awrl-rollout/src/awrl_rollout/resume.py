"""What of a controller goes into a checkpoint, and what a resumed one begins with.

After a resume nothing is in flight. Complete groups whose records were saved go back to the ready
queue, those of a batch whose budget was not released included; every other group that was admitted or in
line is run again, in the order of its first admission, before anything new.
"""

from __future__ import annotations

import msgspec
from awrl_staleness import LedgerSnapshot

from awrl_rollout.episode import EpisodeRequest
from awrl_rollout.groups import CompleteGroup
from awrl_rollout.parts import ControllerParts


class ControllerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A controller as plain data; payloads are the caller's to encode."""

    ledger: LedgerSnapshot
    ready: tuple[CompleteGroup, ...]
    """Complete groups, those of batches in training included."""
    again: tuple[tuple[EpisodeRequest, ...], ...]
    """First requests of the groups to run again, in order."""

    @property
    def persisted(self) -> frozenset[str]:
        """Ids whose records are saved here; for `StalenessManager.restore`."""
        return frozenset(
            record.episode_id for group in self.ready for record in group.fresh_records
        )


def take_snapshot(parts: ControllerParts) -> ControllerSnapshot:
    """Return the controller's groups and ledger."""
    in_training = [group for batch in parts.assembly.in_training.values() for group in batch]
    ready = sorted([*in_training, *parts.assembly.ready], key=lambda group: group.sequence)
    return ControllerSnapshot(
        ledger=parts.manager.snapshot(),
        ready=tuple(ready),
        again=(*parts.book.unfinished(), *parts.admission.backlog()),
    )


def load_snapshot(parts: ControllerParts, snapshot: ControllerSnapshot) -> None:
    """Fill the ready queue and the backlog; the manager was restored from the same snapshot."""
    again = list(snapshot.again)
    lost = 0
    for group in snapshot.ready:
        states = [parts.manager.state(record.episode_id) for record in group.fresh_records]
        if None in states:
            # Tokens of weights that no longer exist: the whole group is run again.
            for record, state in zip(group.fresh_records, states, strict=True):
                if state is not None:
                    parts.manager.reject(record.episode_id, "its group is run again")
            again.insert(lost, group.requests)
            lost += 1
        else:
            parts.assembly.ready.add(
                msgspec.structs.replace(group, sequence=parts.book.next_sequence())
            )
    for requests in again:
        parts.admission.submit(requests)
