"""The publish window as a pure state machine.

Invariants: generation is paused before the first byte is sent, the version switches with the last
bucket, and every path that paused somebody leads through RESUMING. No clock, no I/O.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["WindowEvent", "WindowState", "next_state"]


class WindowState(Enum):
    """Where a publish is."""

    IDLE = "idle"
    HANDSHAKE = "handshake"
    PAUSING = "pause"
    BROADCASTING = "broadcast"
    RESUMING = "resume"
    VERIFYING = "verify"
    DONE = "done"
    FAILED = "failed"


class WindowEvent(Enum):
    """What happened."""

    STARTED = "started"
    GROUP_FORMED = "group formed"
    ALL_PAUSED = "all paused"
    SWITCHED = "switched"
    RECEIVER_LOST = "receiver lost"
    NOBODY_LEFT = "nobody left"
    RESUMED = "resumed"
    VERIFIED = "verified"


_TRANSITIONS: dict[tuple[WindowState, WindowEvent], WindowState] = {
    (WindowState.IDLE, WindowEvent.STARTED): WindowState.HANDSHAKE,
    (WindowState.HANDSHAKE, WindowEvent.GROUP_FORMED): WindowState.PAUSING,
    (WindowState.PAUSING, WindowEvent.ALL_PAUSED): WindowState.BROADCASTING,
    (WindowState.BROADCASTING, WindowEvent.SWITCHED): WindowState.RESUMING,
    (WindowState.RESUMING, WindowEvent.RESUMED): WindowState.VERIFYING,
    (WindowState.VERIFYING, WindowEvent.VERIFIED): WindowState.DONE,
    # A lost receiver takes its group with it: form one of those that are left.
    (WindowState.HANDSHAKE, WindowEvent.RECEIVER_LOST): WindowState.HANDSHAKE,
    (WindowState.PAUSING, WindowEvent.RECEIVER_LOST): WindowState.HANDSHAKE,
    (WindowState.BROADCASTING, WindowEvent.RECEIVER_LOST): WindowState.HANDSHAKE,
    (WindowState.HANDSHAKE, WindowEvent.NOBODY_LEFT): WindowState.FAILED,
    (WindowState.PAUSING, WindowEvent.NOBODY_LEFT): WindowState.FAILED,
    (WindowState.BROADCASTING, WindowEvent.NOBODY_LEFT): WindowState.FAILED,
}


def next_state(state: WindowState, event: WindowEvent) -> WindowState:
    """Return the state after an event.

    Raises:
        RuntimeError: The event can't happen in this state.
    """
    try:
        return _TRANSITIONS[state, event]
    except KeyError:
        raise RuntimeError(
            f"event must be legal in state {state.value!r}, got {event.value!r}."
            " One publish runs at a time."
        ) from None
