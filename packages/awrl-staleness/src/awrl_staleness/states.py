"""The life of one episode as a table; every event that the table lacks is illegal.

    enqueued --start--> running --finish--> finished --consume--> consumed
        |                  |                   |
      reject        reject, fault,      reject, fault,
                       expire               expire

Invariant: `REJECTED`, `FAULTED`, `EXPIRED` and `CONSUMED` have no way out.
"""

from __future__ import annotations

import enum


class EpisodeState(enum.Enum):
    """Where an episode stands."""

    # Members are singletons; Enum's own hash is a Python call and costs a fifth of an event.
    __hash__ = object.__hash__

    ENQUEUED = "enqueued"
    """Known, holds no slot."""
    RUNNING = "running"
    """Holds one slot and one unit of the staleness budget."""
    FINISHED = "finished"
    """Ended well and waits in the queue; its slot is free, its unit is not."""
    CONSUMED = "consumed"
    """In a batch; its unit returns when that batch is settled."""
    REJECTED = "rejected"
    """Filtered out; its unit has returned."""
    FAULTED = "faulted"
    """Lost to the infrastructure; its unit has returned."""
    EXPIRED = "expired"
    """Too far behind to be trained on; its unit has returned."""


class EpisodeEvent(enum.Enum):
    """What may happen to an episode."""

    __hash__ = object.__hash__

    START = "start"
    FINISH = "finish"
    CONSUME = "consume"
    REJECT = "reject"
    FAULT = "fault"
    EXPIRE = "expire"


TERMINAL_STATES: frozenset[EpisodeState] = frozenset(
    {
        EpisodeState.CONSUMED,
        EpisodeState.REJECTED,
        EpisodeState.FAULTED,
        EpisodeState.EXPIRED,
    }
)
"""States without a way out."""

TRANSITIONS: dict[EpisodeEvent, dict[EpisodeState, EpisodeState]] = {
    EpisodeEvent.START: {EpisodeState.ENQUEUED: EpisodeState.RUNNING},
    EpisodeEvent.FINISH: {EpisodeState.RUNNING: EpisodeState.FINISHED},
    EpisodeEvent.CONSUME: {EpisodeState.FINISHED: EpisodeState.CONSUMED},
    EpisodeEvent.REJECT: {
        EpisodeState.ENQUEUED: EpisodeState.REJECTED,
        EpisodeState.RUNNING: EpisodeState.REJECTED,
        EpisodeState.FINISHED: EpisodeState.REJECTED,
    },
    EpisodeEvent.FAULT: {
        EpisodeState.RUNNING: EpisodeState.FAULTED,
        EpisodeState.FINISHED: EpisodeState.FAULTED,
    },
    EpisodeEvent.EXPIRE: {
        EpisodeState.RUNNING: EpisodeState.EXPIRED,
        EpisodeState.FINISHED: EpisodeState.EXPIRED,
    },
}
"""Event -> state before -> state after."""
