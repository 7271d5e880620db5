"""What `allocation_mode` says, as values: which role holds which devices, and who shares.

Invariants: device numbers are handed out left to right, one range for each `+` component, so that
roles joined by `|` hold the very same range; equal strings give equal values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Backend = Literal["embedded", "sglang", "fsdp"]
"""The backends that this system runs: two inference servers and one trainer."""

INFERENCE_BACKENDS: tuple[Backend, ...] = ("embedded", "sglang")
TRAINING_BACKENDS: tuple[Backend, ...] = ("fsdp",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dims:
    """How many members each kind of parallelism has; each at least 1."""

    d: int = 1
    """Data parallel: independent servers, or trainer ranks."""
    t: int = 1
    """Tensor parallel."""
    p: int = 1
    """Pipeline parallel."""
    c: int = 1
    """Context parallel (training only)."""
    e: int = 1
    """Expert parallel (training only); divides the devices, does not multiply them."""

    @property
    def num_devices(self) -> int:
        """Devices that these dims need in all."""
        return self.d * self.t * self.p * self.c


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """One named role: its backend, its parallelism, and the devices that it holds."""

    name: str
    """Scheduler name: `rollout`, `actor`, or what the brackets say."""
    backend: Backend
    """Which program runs the role."""
    dims: Dims
    """Its parallelism."""
    first_device: int
    """Number of its first device within the allocation, counted from 0."""

    @property
    def kind(self) -> Literal["inference", "training"]:
        """Whether the role generates or trains."""
        return "inference" if self.backend in INFERENCE_BACKENDS else "training"

    @property
    def devices(self) -> range:
        """Device numbers that the role holds within the allocation."""
        return range(self.first_device, self.first_device + self.dims.num_devices)


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """Roles that share one set of devices; the first one is the anchor."""

    roles: tuple[Role, ...]
    """At least one; all of the same size."""

    @property
    def num_devices(self) -> int:
        """Devices of the component, counted once however many roles share them."""
        return self.roles[0].dims.num_devices


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """A parsed `allocation_mode`."""

    text: str
    """The string as written."""
    components: tuple[Component, ...]
    """In the order written; each on devices of its own."""

    @property
    def roles(self) -> tuple[Role, ...]:
        """All roles in the order written."""
        return tuple(role for component in self.components for role in component.roles)

    @property
    def num_devices(self) -> int:
        """Devices over all components; shared ones are counted once."""
        return sum(component.num_devices for component in self.components)

    def find(self, name: str) -> Role | None:
        """Return the role called `name`, or `None`."""
        return next((role for role in self.roles if role.name == name), None)

    def role(self, name: str) -> Role:
        """Return the role called `name`.

        Raises:
            KeyError: There is none; the message lists the names.
        """
        found = self.find(name)
        if found is None:
            names = ", ".join(repr(role.name) for role in self.roles)
            raise KeyError(f"role must be one of {names}, got {name!r}.")
        return found

    def is_shared(self, role: Role) -> bool:
        """Return whether another role holds the role's devices too."""
        return any(other is not role and other.devices == role.devices for other in self.roles)

    def shares_devices(self, one: str, other: str) -> bool:
        """Return whether two roles hold the same devices (they were joined by `|`)."""
        return self.role(one).devices == self.role(other).devices
