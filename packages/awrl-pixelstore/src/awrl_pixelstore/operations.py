"""What each client operation asks of which shard, and what it makes of the answers. No Ray here.

An operation is a generator: it yields calls that may run at the same time, is sent their outcomes,
and returns its result. The client drives it, blocking or awaiting; the logic exists once.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar, cast

from awrl_pixelstore.cache import ReadCache
from awrl_pixelstore.errors import PixelNotFound, PixelStoreError, PixelStoreUnavailable
from awrl_pixelstore.image import Image, ImageInfo, PackedImage, pack, unpack
from awrl_pixelstore.keys import make_key, parse_key, require_trajectory_id, run_tag_of
from awrl_pixelstore.pressure import Pressure, merge_pressure
from awrl_pixelstore.statistics import PixelStoreStatistics
from awrl_pixelstore.wire import Call, Fetched, Method, Outcome, Seen, StoreSpec, WindowSlice

T = TypeVar("T")


class Answer(NamedTuple):
    """The outcome of a call after the client has learnt from it."""

    value: object
    """The result, or a `PixelStoreError`."""
    is_current: bool
    """Whether images in it may be cached."""


Steps: TypeAlias = Generator[Sequence[Call], Sequence[Answer], T]
"""Yields calls, is sent their answers, returns the result."""


class StoreOperations:
    """The operations of one client.

    Args:
        spec: What the store's creator fixed.
        node_id: Ray node of this process; puts go to its shards.
        clock: Monotonic seconds, for the age of pressure readings.
    """

    def __init__(
        self, spec: StoreSpec, node_id: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._spec = spec
        self._clock = clock
        self._run_tag = run_tag_of(spec.run_id)
        self._shards = range(len(spec.layout))
        near = [shard for shard in self._shards if spec.layout[shard] == node_id]
        self._near = near or list(self._shards)
        self._usage: dict[int, tuple[int, int, float]] = {}
        self.cache = ReadCache(spec.config.read_cache_bytes)

    def seen(self, calls: Sequence[Call]) -> list[Seen | None]:
        """Return what each call should tell its shard."""
        return [self.cache.seen(call.shard) for call in calls]

    def absorb(
        self, calls: Sequence[Call], seen: Sequence[Seen | None], outcomes: Sequence[Outcome]
    ) -> list[Answer]:
        """Learn usage and freed keys from outcomes, before the operation sees them."""
        answers: list[Answer] = []
        for call, told, outcome in zip(calls, seen, outcomes, strict=True):
            if isinstance(outcome, PixelStoreError):
                answers.append(Answer(outcome, is_current=False))
                continue
            if outcome.capacity_bytes:
                used, capacity = outcome.used_bytes, outcome.capacity_bytes
                self._usage[call.shard] = (used, capacity, self._clock())
            is_current = self.cache.absorb(call.shard, told, outcome)
            answers.append(Answer(outcome.value, is_current))
        return answers

    def put_many(
        self,
        images: Sequence[Image],
        trajectory_id: str,
        shapes: Sequence[tuple[int, ...] | None] | None,
    ) -> Steps[list[str]]:
        """Hold images; one call per near shard and `max_call_bytes`."""
        require_trajectory_id(trajectory_id)
        declared = shapes if shapes is not None else [None] * len(images)
        packed = [pack(image, shape) for image, shape in zip(images, declared, strict=True)]
        shards = [self._shard_for(image) for image in packed]
        queues = {
            shard: self._batches([p for p, at in zip(packed, shards, strict=True) if at == shard])
            for shard in dict.fromkeys(shards)
        }
        while calls := [
            Call(shard, "put", (batch, trajectory_id))
            for shard, queue in queues.items()
            if (batch := next(queue, None)) is not None
        ]:
            _values((yield calls), list)
        return [
            make_key(self._run_tag, shard, image.digest)
            for image, shard in zip(packed, shards, strict=True)
        ]

    def get_many(self, keys: Sequence[str]) -> Steps[list[Image]]:
        """Return images in the order of `keys`; one call per shard that has uncached ones."""
        ours, foreign = self._split(keys)
        missing = dict.fromkeys(foreign)
        cached = {key: self.cache.find(key) for key in ours}
        found = {key: image for key, image in cached.items() if image is not None}
        open_keys = [key for key in ours if key not in found]
        while open_keys:
            calls = [
                Call(shard, "fetch", (mine,), tuple(mine))
                for shard, mine in self._by_shard(open_keys).items()
            ]
            answers = yield calls
            open_keys = []
            for answer, fetched in zip(answers, _values(answers, Fetched), strict=True):
                found.update(self._take(fetched, is_current=answer.is_current))
                missing.update(dict.fromkeys(fetched.missing))
                open_keys.extend(fetched.rest)
        if missing:
            raise PixelNotFound([key for key in dict.fromkeys(keys) if key in missing], found=found)
        return [found[key] for key in keys]

    def missing(self, keys: Sequence[str]) -> Steps[list[str]]:
        """Return keys that are not held; a shard known to be dead holds nothing."""
        ours, foreign = self._split(keys)
        lost = set(foreign)
        calls = [
            Call(shard, "missing", (mine,), tuple(mine))
            for shard, mine in self._by_shard(ours).items()
        ]
        for call, answer in zip(calls, (yield calls), strict=True):
            if isinstance(answer.value, PixelStoreUnavailable) and answer.value.is_gone:
                lost.update(call.keys)
            else:
                lost.update(_values([answer], list)[0])
        return [key for key in dict.fromkeys(keys) if key in lost]

    def describe(self, keys: Sequence[str]) -> Steps[list[ImageInfo]]:
        """Return form, shape, size and reference count of keys, in order."""
        ours, foreign = self._split(keys)
        if foreign:
            raise PixelNotFound(foreign)
        calls = [
            Call(shard, "describe", (mine,), tuple(mine))
            for shard, mine in self._by_shard(ours).items()
        ]
        infos: dict[str, ImageInfo] = {}
        for part in _values((yield calls), list):
            infos.update({info.key: info for info in cast("list[ImageInfo]", part)})
        return [infos[key] for key in keys]

    def acquire(self, trajectory_id: str, keys: Sequence[str]) -> Steps[None]:
        """Let one more trajectory hold keys; all or none per shard."""
        require_trajectory_id(trajectory_id)
        ours, foreign = self._split(keys)
        if foreign:
            raise PixelNotFound(foreign)
        calls = [
            Call(shard, "acquire", (trajectory_id, mine), tuple(mine))
            for shard, mine in self._by_shard(ours).items()
        ]
        _values((yield calls), object)

    def release_many(self, trajectory_ids: Sequence[str]) -> Steps[int]:
        """End leases on every shard; a shard known to be dead has none."""
        answers = yield self._everywhere("release", tuple(trajectory_ids))
        alive = [answer for answer in answers if not _is_gone(answer)]
        return sum(_values(alive, int))

    def transfer(self, source: str, target: str) -> Steps[None]:
        """Hand leases over on every shard; a shard known to be dead has none."""
        require_trajectory_id(target)
        answers = yield self._everywhere("transfer", source, target)
        _values([answer for answer in answers if not _is_gone(answer)], object)

    def renew(self, trajectory_ids: Sequence[str]) -> Steps[list[str]]:
        """Keep leases from expiring; return ids that no living shard knows."""
        answers = yield self._everywhere("renew", tuple(trajectory_ids))
        unknown = [_values([answer], list)[0] for answer in answers if not _is_gone(answer)]
        return [name for name in trajectory_ids if all(name in names for names in unknown)]

    def statistics(self) -> Steps[list[PixelStoreStatistics]]:
        """Return one snapshot per shard."""
        return _values((yield self._everywhere("statistics")), PixelStoreStatistics)

    def pressure(self, max_age_s: float) -> Steps[Pressure]:
        """Return the fullness; shards whose last word is older than `max_age_s` are asked."""
        oldest = self._clock() - max_age_s
        stale = [
            Call(shard, "usage", ())
            for shard in self._shards
            if shard not in self._usage or self._usage[shard][2] < oldest
        ]
        if stale:
            _values((yield stale), object)
        return self.last_pressure()

    def last_pressure(self) -> Pressure:
        """Return the fullness at the last answer of each shard, without a call."""
        return merge_pressure([(used, capacity) for used, capacity, _ in self._usage.values()])

    def stop(self, is_disk_kept: bool) -> Steps[list[int]]:
        """Stop every shard; return all of them, answered or not, for killing."""
        yield self._everywhere("stop", is_disk_kept)
        self.cache.clear()
        return list(self._shards)

    def _shard_for(self, image: PackedImage) -> int:
        # With one candidate no digest is needed yet: the bytes can go before they are hashed.
        at = int(image.digest[:8], 16) % len(self._near) if len(self._near) > 1 else 0
        return self._near[at]

    def _everywhere(self, method: Method, *arguments: object) -> list[Call]:
        return [Call(shard, method, arguments) for shard in self._shards]

    def _split(self, keys: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the keys of this store and those of others, each once."""
        if isinstance(keys, str):
            raise TypeError(
                f"keys must be a sequence of keys, got the str {keys!r}. Put it in a list."
            )
        ours: list[str] = []
        foreign: list[str] = []
        parsed = [parse_key(key) for key in keys]
        for key, parts in dict(zip(keys, parsed, strict=True)).items():
            is_ours = parts.run_tag == self._run_tag and parts.shard in self._shards
            (ours if is_ours else foreign).append(key)
        return ours, foreign

    @staticmethod
    def _by_shard(keys: Sequence[str]) -> dict[int, list[str]]:
        grouped: dict[int, list[str]] = {}
        for key in keys:
            grouped.setdefault(parse_key(key).shard, []).append(key)
        return grouped

    def _batches(self, images: Sequence[PackedImage]) -> Iterator[list[PackedImage]]:
        batch: list[PackedImage] = []
        num_bytes = 0
        for image in images:
            num_bytes += image.payload.nbytes
            if batch and num_bytes > self._spec.config.max_call_bytes:
                yield batch
                batch, num_bytes = [], image.payload.nbytes
            batch.append(image)
        if batch:
            yield batch

    def _take(self, fetched: Fetched, *, is_current: bool) -> dict[str, Image]:
        taken: dict[str, Image] = {}
        for key, form, shape, payload in fetched.images:
            assert not isinstance(payload, WindowSlice)
            # The copy lets go of Ray's shared memory as soon as the answer is dropped.
            own = payload if isinstance(payload, bytes) else payload.tobytes()
            taken[key] = unpack(form, shape, own)
            if is_current:
                self.cache.add(key, taken[key])
        return taken


def _is_gone(answer: Answer) -> bool:
    return isinstance(answer.value, PixelStoreUnavailable) and answer.value.is_gone


def _values(answers: Sequence[Answer], kind: type[T]) -> list[T]:
    for answer in answers:
        if isinstance(answer.value, PixelStoreError):
            raise answer.value
        assert isinstance(answer.value, kind)
    return [cast("T", answer.value) for answer in answers]
