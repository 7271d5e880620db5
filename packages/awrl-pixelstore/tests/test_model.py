"""The core against a model: any sequence of operations, crashes of the process included."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from awrl_pixelstore import PixelNotFound, PixelStoreConfig, PixelStoreCore, PixelStoreFull
from awrl_pixelstore.disk import DiskTier
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

IMAGES = [np.full((2, 2 + number % 3, 3), number, np.uint8) for number in range(8)]
ABSENT = "px-25bf8e1a-0-" + "f" * 32
TTL_S = 10.0
IMAGE = st.integers(0, len(IMAGES) - 1)
NAME = st.sampled_from(["a", "b", "c", "d"])


class StoreMachine(RuleBasedStateMachine):
    """Leases as plain sets beside the core; every answer must agree."""

    has_disk: ClassVar[bool] = False
    memory_bytes: ClassVar[int] = 60
    disk_bytes: ClassVar[int] = 90

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.root = Path(tempfile.mkdtemp(prefix="pixelstore-"))
        self.leases: dict[str, dict[str, None]] = {}
        self.put_at: dict[str, float] = {}
        self.images: dict[str, int] = {}
        self.disk: DiskTier | None = None
        self.core = self._start()

    def _start(self) -> PixelStoreCore:
        self.disk = DiskTier(self.root) if self.has_disk else None
        config = PixelStoreConfig(
            max_bytes=self.memory_bytes,
            disk_dir=str(self.root) if self.has_disk else None,
            max_disk_bytes=self.disk_bytes,
            lease_ttl_s=TTL_S,
        )
        return PixelStoreCore(config, clock=lambda: self.now, disk=self.disk)

    def teardown(self) -> None:
        if self.disk is not None:
            self.core.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def _held(self) -> set[str]:
        return {key for keys in self.leases.values() for key in keys}

    def _bytes(self, keys: set[str]) -> int:
        return sum(IMAGES[self.images[key]].nbytes for key in keys)

    def _drop(self, name: str) -> int:
        before = self._held()
        self.leases.pop(name, None)
        self.put_at.pop(name, None)
        return self._bytes(before - self._held())

    @rule(name=NAME, chosen=st.lists(IMAGE, max_size=4))
    def put(self, name: str, chosen: list[int]) -> None:
        known = {number: key for key, number in self.images.items() if key in self._held()}
        fresh = sum(IMAGES[number].nbytes for number in set(chosen) if number not in known)
        if self._bytes(self._held()) + fresh > self.core.config.capacity_bytes:
            with pytest.raises(PixelStoreFull):
                self.core.put_many([IMAGES[number] for number in chosen], trajectory_id=name)
            return
        keys = self.core.put_many([IMAGES[number] for number in chosen], trajectory_id=name)
        assert all(known.get(number, key) == key for number, key in zip(chosen, keys, strict=True))
        self.images.update(zip(keys, chosen, strict=True))
        if keys:
            self.leases.setdefault(name, {}).update(dict.fromkeys(keys))
        if name in self.leases:
            self.put_at[name] = self.now

    @rule(name=NAME)
    def release(self, name: str) -> None:
        assert self.core.release(name) == self._drop(name)

    @rule(names=st.lists(NAME))
    def release_several(self, names: list[str]) -> None:
        assert self.core.release(*names) == sum(self._drop(name) for name in names)

    @rule(seconds=st.sampled_from([1.0, 6.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        overdue = {name for name, at in self.put_at.items() if at < self.now - TTL_S}
        assert set(self.core.expire()) == overdue
        for name in overdue:
            self._drop(name)

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        keys = data.draw(st.lists(st.sampled_from([*self.images, ABSENT]), max_size=4))
        lost = [key for key in dict.fromkeys(keys) if key not in self._held()]
        assert self.core.missing(keys) == lost
        if lost:
            with pytest.raises(PixelNotFound) as caught:
                self.core.get_many(keys)
            assert list(caught.value.keys) == lost
            found = caught.value.found
        else:
            found = dict(zip(keys, self.core.get_many(keys), strict=True))
        for key, image in found.items():
            np.testing.assert_array_equal(image, IMAGES[self.images[key]])

    @precondition(lambda self: self.disk is not None)
    @rule()
    def crash_and_reload(self) -> None:
        assert self.disk is not None
        self.disk.close()
        self.core = self._start()
        pairs = {(name, key) for name, keys in self.leases.items() for key in keys}
        assert set(self.disk.recovered.leases) == pairs
        assert set(self.disk.recovered.sizes) == self._held()
        assert self.core.statistics().num_lost == 0
        assert self.core.missing(sorted(self._held())) == []
        self.put_at = dict.fromkeys(self.leases, self.now)

    @precondition(lambda self: self.disk is not None)
    @rule(data=st.data(), is_gone=st.booleans(), is_asked=st.booleans())
    def lose_one_on_disk(self, data: st.DataObject, is_gone: bool, is_asked: bool) -> None:
        assert self.disk is not None
        if not self._held():
            return
        key = data.draw(st.sampled_from(sorted(self._held())))
        self.disk.close()
        if is_gone:
            (self.root / "images" / key).unlink()
        else:
            (self.root / "images" / key).write_bytes(b"damaged")
        self.core = self._start()
        self.put_at = dict.fromkeys(self.leases, self.now)
        if is_asked:
            assert self.core.missing([key]) == [key]
        else:
            with pytest.raises(PixelNotFound):
                self.core.get_many([key])
        assert self.core.statistics().num_lost == 1
        for keys in self.leases.values():
            keys.pop(key, None)
        for name in [name for name, keys in self.leases.items() if not keys]:
            self._drop(name)

    @invariant()
    def counts_agree(self) -> None:
        statistics = self.core.statistics()
        held = self._held()
        assert statistics.num_entries == len(held)
        assert statistics.num_bytes == self._bytes(held) <= self.core.config.capacity_bytes
        assert statistics.num_memory_bytes <= self.memory_bytes
        assert statistics.num_trajectories == len(self.leases)
        assert statistics.num_references == sum(len(keys) for keys in self.leases.values())
        assert self.core.pressure().used_bytes == statistics.num_bytes

    @invariant()
    def the_disk_holds_exactly_what_is_held(self) -> None:
        if self.disk is None:
            assert self.core.statistics().num_disk_bytes == 0
            return
        assert self.core.statistics().num_disk_bytes == self._bytes(self._held())
        assert {path.name for path in (self.root / "images").iterdir()} == self._held()


class DiskMachine(StoreMachine):
    """Every put is on disk when it returns; memory is smaller than what is held."""

    has_disk = True
    memory_bytes = 40


STEPS = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestMemory = StoreMachine.TestCase
TestMemory.settings = STEPS
TestDisk = DiskMachine.TestCase
TestDisk.settings = STEPS
