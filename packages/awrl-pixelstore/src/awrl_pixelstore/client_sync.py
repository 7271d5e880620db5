"""Blocking calls. Not for code that runs in an event loop."""

from collections.abc import Sequence

from awrl_pixelstore.client_base import ClientBase
from awrl_pixelstore.image import Image, ImageInfo
from awrl_pixelstore.pressure import Pressure
from awrl_pixelstore.statistics import PixelStoreStatistics, merge_statistics


class BlockingCalls(ClientBase):
    """Every operation of a store as a blocking call."""

    def put(
        self,
        data: Image,
        *,
        trajectory_id: str,
        shape: tuple[int, ...] | None = None,
        timeout_s: float | None = None,
    ) -> str:
        """Store one screenshot and return its key.

        Args:
            data: Encoded PNG, JPEG or WebP bytes, or a uint8 array `[H, W, C]`.
            trajectory_id: Trajectory that holds it until it is released.
            shape: Declared `(H, W)` or `(H, W, C)`, checked when given.
            timeout_s: Limit of the call; None takes the store's.

        Returns:
            The key: the same for the same content on the same shard.

        Raises:
            TypeError: `data` is neither bytes nor an array.
            InvalidImage: `data` is not an image that the store holds.
            PixelStoreFull: It does not fit the shard's budget.
            DiskTierError: The shard's disk tier refused.
            PixelStoreUnavailable: A shard did not answer within the limit.
        """
        steps = self._operations.put_many([data], trajectory_id, [shape])
        return (self._drive(steps, timeout_s))[0]

    def put_many(
        self,
        images: Sequence[Image],
        *,
        trajectory_id: str,
        shapes: Sequence[tuple[int, ...] | None] | None = None,
        timeout_s: float | None = None,
    ) -> list[str]:
        """Store screenshots in one call per near shard and return their keys in order.

        Args:
            images: Encoded bytes or uint8 arrays `[H, W, C]`.
            trajectory_id: Trajectory that holds them until it is released.
            shapes: Declared shapes, one for each image, checked when given.
            timeout_s: Limit of the call; None takes the store's.

        Returns:
            One key for each image.

        Raises:
            TypeError: An image is neither bytes nor an array.
            InvalidImage: One is not an image that the store holds; nothing was stored.
            PixelStoreFull: They do not fit; nothing of the call to that shard was stored.
            DiskTierError: The shard's disk tier refused; as above.
            PixelStoreUnavailable: A shard did not answer within the limit.
        """
        steps = self._operations.put_many(images, trajectory_id, shapes)
        return self._drive(steps, timeout_s)

    def get_many(self, keys: Sequence[str], *, timeout_s: float | None = None) -> list[Image]:
        """Return screenshots as they were put, in the order of `keys`.

        One call per shard brings all that the read cache lacks. Arrays are read-only.

        Args:
            keys: Keys from puts; repeats cost nothing.
            timeout_s: Limit of the call; None takes the store's.

        Returns:
            Encoded bytes or uint8 arrays `[H, W, C]`.

        Raises:
            TypeError: A key is not a string.
            InvalidKey: A string has not the form of a key.
            PixelNotFound: Some are not held; the error names them and carries the others.
            PixelStoreUnavailable: A shard did not answer within the limit.
        """
        return self._drive(self._operations.get_many(keys), timeout_s)

    def missing(self, keys: Sequence[str], *, timeout_s: float | None = None) -> list[str]:
        """Return the keys that the store does not hold, in order, each once.

        Args:
            keys: Keys from puts, of any run.
            timeout_s: Limit of the call; None takes the store's.

        Returns:
            The lost ones: of another run, never put, released, expired, or lost with a shard.

        Raises:
            TypeError: A key is not a string.
            InvalidKey: A string has not the form of a key.
            PixelStoreUnavailable: A shard did not answer, so that it is unknown what it holds.
        """
        return self._drive(self._operations.missing(keys), timeout_s)

    def describe(self, keys: Sequence[str], *, timeout_s: float | None = None) -> list[ImageInfo]:
        """Return form, shape, size and reference count of each key without its bytes.

        Args:
            keys: Keys from puts.
            timeout_s: Limit of the call; None takes the store's.

        Returns:
            One description for each key, in order.

        Raises:
            TypeError: A key is not a string.
            InvalidKey: A string has not the form of a key.
            PixelNotFound: Some are not held.
            PixelStoreUnavailable: A shard did not answer within the limit.
        """
        return self._drive(self._operations.describe(keys), timeout_s)

    def acquire(
        self, trajectory_id: str, keys: Sequence[str], *, timeout_s: float | None = None
    ) -> None:
        """Let one more trajectory hold screenshots that are stored already.

        Args:
            trajectory_id: Trajectory that holds them until it is released.
            keys: Keys from puts.
            timeout_s: Limit of the call; None takes the store's.

        Raises:
            ValueError: `trajectory_id` is empty.
            TypeError: A key is not a string.
            InvalidKey: A string has not the form of a key.
            PixelNotFound: Some are not held; that shard acquired none.
            PixelStoreUnavailable: A shard did not answer within the limit.
        """
        self._drive(self._operations.acquire(trajectory_id, keys), timeout_s)

    def release(self, trajectory_id: str, *, timeout_s: float | None = None) -> int:
        """End what a trajectory holds; screenshots that no other holds are gone.

        Args:
            trajectory_id: Any name; one that holds nothing is no error.
            timeout_s: Limit of the call; None takes the store's.

        Returns:
            Bytes freed.

        Raises:
            PixelStoreUnavailable: A shard did not answer within the limit.
        """
        return self._drive(self._operations.release_many([trajectory_id]), timeout_s)

    def release_many(self, trajectory_ids: Sequence[str], *, timeout_s: float | None = None) -> int:
        """End what several trajectories hold, in one call per shard.

        Args:
            trajectory_ids: Any names; those that hold nothing are no error.
            timeout_s: Limit of the call; None takes the store's.

        Returns:
            Bytes freed.

        Raises:
            PixelStoreUnavailable: A shard did not answer within the limit.
        """
        return self._drive(self._operations.release_many(trajectory_ids), timeout_s)

    def transfer(self, source: str, target: str, *, timeout_s: float | None = None) -> None:
        """Hand everything that one trajectory holds to another; nothing is freed.

        Args:
            source: Trajectory that gives; one that holds nothing is no error.
            target: Trajectory that holds it afterwards.
            timeout_s: Limit of the call; None takes the store's.

        Raises:
            ValueError: `target` is empty.
            PixelStoreUnavailable: A shard did not answer within the limit.
        """
        self._drive(self._operations.transfer(source, target), timeout_s)

    def renew(self, trajectory_ids: Sequence[str], *, timeout_s: float | None = None) -> list[str]:
        """Keep trajectories from expiring as orphans.

        Args:
            trajectory_ids: Those that are alive.
            timeout_s: Limit of the call; None takes the store's.

        Returns:
            Those that hold nothing.

        Raises:
            PixelStoreUnavailable: A shard did not answer within the limit.
        """
        return self._drive(self._operations.renew(trajectory_ids), timeout_s)

    def statistics(self, *, timeout_s: float | None = None) -> PixelStoreStatistics:
        """Return what the store holds and did, summed over its shards.

        Args:
            timeout_s: Limit of the call; None takes the store's.

        Returns:
            One snapshot.

        Raises:
            PixelStoreUnavailable: A shard did not answer within the limit.
        """
        return merge_statistics(self._drive(self._operations.statistics(), timeout_s))

    def statistics_by_shard(self, *, timeout_s: float | None = None) -> list[PixelStoreStatistics]:
        """Return what each shard holds and did.

        Args:
            timeout_s: Limit of the call; None takes the store's.

        Returns:
            One snapshot for each shard.

        Raises:
            PixelStoreUnavailable: A shard did not answer within the limit.
        """
        return self._drive(self._operations.statistics(), timeout_s)

    def pressure(self, *, max_age_s: float = 1.0, timeout_s: float | None = None) -> Pressure:
        """Return how full the store is, usually without a call.

        Every answer of a shard carries its fullness; only a shard that has not answered this
        client for `max_age_s` is asked.

        Args:
            max_age_s: Age that a reading may have; 0 always asks.
            timeout_s: Limit of the call; None takes the store's.

        Returns:
            The reading.

        Raises:
            PixelStoreUnavailable: A shard did not answer within the limit.
        """
        return self._drive(self._operations.pressure(max_age_s), timeout_s)

    def close(self, *, is_disk_kept: bool = False) -> None:
        """End the store's actors, for every client; no error when they are gone already.

        Args:
            is_disk_kept: Whether images on disk stay for a later store of the same run.
        """
        for shard in self._drive(self._operations.stop(is_disk_kept), None):
            self._transport.kill(shard)
