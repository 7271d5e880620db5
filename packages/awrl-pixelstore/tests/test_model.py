"""The core against a model: any sequence of operations, crashes of the process included."""

import shutil
import tempfile
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pytest
from awrl_pixelstore import (
    DiskConfig,
    PixelNotFound,
    PixelStoreConfig,
    PixelStoreCore,
    PixelStoreFull,
)
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

    mode: ClassVar[Literal["memory", "write_through", "write_behind"]] = "memory"
    memory_bytes: ClassVar[int] = 60
    disk_bytes: ClassVar[int] = 90

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.root = Path(tempfile.mkdtemp(prefix="pixelstore-"))
        self.leases: dict[str, dict[str, None]] = {}
        self.renewed: dict[str, float] = {}
        self.images: dict[str, int] = {}
        self.disk: DiskTier | None = None
        self.core = self._start()

    def _start(self) -> PixelStoreCore:
        disk = None
        if self.mode != "memory":
            disk = DiskConfig(root=str(self.root), max_bytes=self.disk_bytes, mode=self.mode)
            self.disk = DiskTier(disk, run_id="local", shard=0)
        config = PixelStoreConfig(max_bytes=self.memory_bytes, lease_ttl_s=TTL_S, disk=disk)
        return PixelStoreCore(config, clock=lambda: self.now, disk=self.disk)

    def teardown(self) -> None:
        if self.disk is not None:
            self.core.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def _held(self) -> set[str]:
        return {key for keys in self.leases.values() for key in keys}

    def _bytes(self, keys: set[str]) -> int:
        return sum(IMAGES[self.images[key]].nbytes for key in keys)

    def _lease(self, name: str, keys: list[str]) -> None:
        if keys:
            self.leases.setdefault(name, {}).update(dict.fromkeys(keys))
            self.renewed[name] = self.now
        elif name in self.leases:
            self.renewed[name] = self.now

    def _drop(self, name: str) -> int:
        before = self._held()
        self.leases.pop(name, None)
        self.renewed.pop(name, None)
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
        self._lease(name, keys)

    @rule(name=NAME, data=st.data())
    def acquire(self, name: str, data: st.DataObject) -> None:
        keys = data.draw(st.lists(st.sampled_from([*self.images, ABSENT]), max_size=3))
        if set(keys) <= self._held():
            self.core.acquire(name, keys)
            self._lease(name, keys)
        else:
            with pytest.raises(PixelNotFound):
                self.core.acquire(name, keys)

    @rule(name=NAME)
    def release(self, name: str) -> None:
        assert self.core.release(name) == self._drop(name)

    @rule(source=NAME, other=NAME)
    def transfer(self, source: str, other: str) -> None:
        self.core.transfer(source, other)
        if source != other and source in self.leases:
            self._lease(other, list(self.leases[source]))
            self._drop(source)

    @rule(seconds=st.sampled_from([1.0, 6.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        overdue = {name for name, at in self.renewed.items() if at < self.now - TTL_S}
        assert set(self.core.expire()) == overdue
        for name in overdue:
            self._drop(name)

    @rule(names=st.lists(NAME, unique=True))
    def renew(self, names: list[str]) -> None:
        assert self.core.renew(names) == [name for name in names if name not in self.leases]
        self.renewed.update({name: self.now for name in names if name in self.leases})

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

    @rule(num_images=st.one_of(st.none(), st.integers(0, 2)))
    def flush(self, num_images: int | None) -> None:
        num_left = self.core.flush(num_images)
        assert num_left == 0 or (self.mode == "write_behind" and num_images is not None)

    @precondition(lambda self: self.disk is not None)
    @rule(is_flushed=st.booleans())
    def crash_and_reload(self, is_flushed: bool) -> None:
        assert self.disk is not None
        if is_flushed:
            self.core.flush()
        written = {path.stem for path in self.root.rglob("*.px")}
        held = self._held()
        self.disk.close()
        self.core = self._start()
        lost = {key for key in held if key.rsplit("-", 1)[1] not in written}
        if is_flushed or self.mode == "write_through":
            assert not lost
        assert self.core.statistics().num_lost == len(lost)
        assert set(self.core.missing(sorted(held))) == lost
        for name, keys in list(self.leases.items()):
            self.leases[name] = {key: None for key in keys if key not in lost}
            self.renewed[name] = self.now
            if not self.leases[name]:
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
    def the_disk_holds_what_it_should(self) -> None:
        written = {path.stem for path in self.root.rglob("*.px")}
        held = {key.rsplit("-", 1)[1] for key in self._held()}
        assert written <= held
        if self.mode == "write_through":
            assert written == held
        assert self.core.statistics().num_disk_bytes == self._bytes(
            {key for key in self._held() if key.rsplit("-", 1)[1] in written}
        )


class WriteThroughMachine(StoreMachine):
    """Every put is on disk when it returns."""

    mode = "write_through"
    memory_bytes = 40


class WriteBehindMachine(StoreMachine):
    """Puts reach the disk later, or when memory runs short."""

    mode = "write_behind"
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
TestWriteThrough = WriteThroughMachine.TestCase
TestWriteThrough.settings = STEPS
TestWriteBehind = WriteBehindMachine.TestCase
TestWriteBehind.settings = STEPS
