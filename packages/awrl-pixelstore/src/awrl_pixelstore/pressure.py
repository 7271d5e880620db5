"""How full a store is, for an admission gate, and how much room a run needs."""

from dataclasses import dataclass

from awrl_pixelstore.config import PixelStoreConfig, require_positive


@dataclass(frozen=True, kw_only=True, slots=True)
class Pressure:
    """Fullness at the last word from each shard."""

    value: float
    """0 (empty) to 1 (full), of the fullest shard: it is the one that refuses first."""
    used_bytes: int
    """Payload bytes held, over all shards."""
    capacity_bytes: int
    """Payload bytes that can be held, over all shards."""
    free_bytes: int
    """Room in the fullest shard times the number of shards: what can be promised."""

    def num_episodes_that_fit(self, bytes_per_episode: int) -> int:
        """Return how many more episodes the free room takes, as an admission bound.

        Args:
            bytes_per_episode: Bytes that one episode puts at most.

        Returns:
            A whole number >= 0.

        Raises:
            ValueError: `bytes_per_episode` is not above zero.
        """
        require_positive("bytes_per_episode", bytes_per_episode, "Measure some episodes.")
        return self.free_bytes // bytes_per_episode


def merge_pressure(readings: list[tuple[int, int]]) -> Pressure:
    """Return one reading from `(used_bytes, capacity_bytes)` of each shard.

    Args:
        readings: One pair per shard; capacities above zero.

    Returns:
        The reading; `value` 0 without shards.
    """
    if not readings:
        return Pressure(value=0.0, used_bytes=0, capacity_bytes=0, free_bytes=0)
    value = max(used / capacity for used, capacity in readings)
    least_free = min(max(capacity - used, 0) for used, capacity in readings)
    return Pressure(
        value=min(value, 1.0),
        used_bytes=sum(used for used, _ in readings),
        capacity_bytes=sum(capacity for _, capacity in readings),
        free_bytes=least_free * len(readings),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """What a run needs at its fullest."""

    num_episodes: int
    """Episodes whose screenshots can be held at one time."""
    bytes_per_episode: int
    """Bytes of one episode at most."""
    num_bytes: int
    """Bytes in all."""

    def check(self, config: PixelStoreConfig, *, num_shards: int = 1) -> None:
        """Pass silently when a store of `num_shards` shards takes it all.

        Args:
            config: The store's config.
            num_shards: Its shards; episodes are assumed to spread evenly.

        Raises:
            ValueError: The capacity is too small; the message says by how much.
        """
        require_positive("num_shards", num_shards, "A store has at least one.")
        capacity = config.capacity_bytes * num_shards
        if capacity < self.num_bytes:
            name = "max_bytes" if config.disk is None else "disk.max_bytes"
            needed = -(-self.num_bytes // num_shards)
            raise ValueError(
                f"{name} must be >= {needed} per shard for {self.num_episodes} episodes of "
                f"{self.bytes_per_episode} bytes on {num_shards} shard(s), got "
                f"{config.capacity_bytes}. Raise it, add a disk tier, or lower the allowed "
                "staleness or the batch."
            )


def room_for_episodes(
    *,
    max_off_policyness: int,
    consumer_batch_size: int,
    screenshots_per_episode: int,
    bytes_per_screenshot: int,
    num_extra_episodes: int = 0,
) -> Room:
    """Return the room that a run needs whose admission holds `(eta + 1) * B` episodes at most.

    That bound counts running, queued and training episodes until the update that consumes them is
    published; a trainer that releases a batch only later needs `num_extra_episodes` for it.

    Args:
        max_off_policyness: eta, the allowed staleness in weight versions.
        consumer_batch_size: B, episodes per batch.
        screenshots_per_episode: Screenshots of one episode at most.
        bytes_per_screenshot: Bytes of one screenshot at most, in the form that is put.
        num_extra_episodes: Episodes beyond the bound, of a test rollout or a late release.

    Returns:
        The room, to be compared with a config by `Room.check`.

    Raises:
        ValueError: A count is out of range.
    """
    if max_off_policyness < 0:
        raise ValueError(
            f"max_off_policyness must be >= 0, got {max_off_policyness}. 0 is synchronous."
        )
    if num_extra_episodes < 0:
        raise ValueError(f"num_extra_episodes must be >= 0, got {num_extra_episodes}. Use 0.")
    require_positive("consumer_batch_size", consumer_batch_size, "Use the trainer's batch.")
    require_positive("screenshots_per_episode", screenshots_per_episode, "Use the step cap + 1.")
    require_positive("bytes_per_screenshot", bytes_per_screenshot, "Measure some screenshots.")
    num_episodes = (max_off_policyness + 1) * consumer_batch_size + num_extra_episodes
    per_episode = screenshots_per_episode * bytes_per_screenshot
    return Room(
        num_episodes=num_episodes,
        bytes_per_episode=per_episode,
        num_bytes=num_episodes * per_episode,
    )
