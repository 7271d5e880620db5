"""The rehearsal of a large run on one machine: its true topology, with stand-ins for the hardware."""

from __future__ import annotations
