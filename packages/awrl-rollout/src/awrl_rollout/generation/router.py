"""One `GenerateClient` over several servers, on which an episode stays.

Invariants:

* all attempts of one key (an episode, or a group of siblings) go to one server, so that its prefix
  cache serves every further turn and every resubmission: the one it was assigned, else the one that
  the key belongs to by rendezvous hashing;
* a server that joins or leaves moves only the keys that it gains or loses (rendezvous hashing);
* after `set_servers` no further attempt goes to a server that is not among them;
* a server that gave no answer rests for a while, and its keys go to their second choice; when all
  rest, none does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from awrl_rollout.clock import Clock, RealClock
from awrl_rollout.errors import ServerUnavailableError
from awrl_rollout.generation.protocol import GenerateClient, GenerateRequest, GenerateResult


class ServerClient(GenerateClient, Protocol):
    """A client of one server that the router may close, for example an `SGLangClient`."""

    async def aclose(self) -> None:
        """Close all connections."""
        ...


class StickyRouter:
    """Sends each request to the server that its key belongs to, and owns the servers' clients.

    Args:
        servers: Names of the servers, for example their addresses.
        connect: Makes the client of a server; called once for each.
        key: What stays together; default the whole `episode_id`.
        rest_s: Seconds without attempts after one that had no answer.
    """

    def __init__(
        self,
        servers: Iterable[str],
        *,
        connect: Callable[[str], ServerClient],
        key: Callable[[GenerateRequest], str] = lambda request: request.episode_id,
        rest_s: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        self._connect = connect
        self._key = key
        self._rest_s = rest_s
        self._clock = RealClock() if clock is None else clock
        self._clients: dict[str, ServerClient] = {}
        self._servers: tuple[str, ...] = ()
        self._rests_until_s: dict[str, float] = {}
        self._assigned: dict[str, str] = {}
        self.set_servers(servers)

    def assign(self, servers: Mapping[str, str]) -> None:
        """Send the attempts of these keys to the named servers, as long as those are well."""
        self._assigned |= servers

    def forget(self, keys: Iterable[str]) -> None:
        """Drop the assignments of keys that ask no more."""
        for key in keys:
            self._assigned.pop(key, None)

    def set_servers(self, servers: Iterable[str]) -> None:
        """Route to these servers from now on; attempts on their way are not touched."""
        self._servers = tuple(servers)
        self._rests_until_s.clear()
        for name in self._servers:
            if name not in self._clients:
                self._clients[name] = self._connect(name)

    async def aclose(self) -> None:
        """Close every client, also after one that raises; harmless if repeated.

        Raises:
            Exception: The first error of a client, when every other one is closed. After an interrupted
                call, the next one closes those that are left.
        """
        self._servers = ()
        errors: list[Exception] = []
        while self._clients:
            client = self._clients.pop(next(iter(self._clients)))
            try:
                await client.aclose()
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
        if errors:
            raise errors[0]

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Return one attempt of the server that the request's key belongs to.

        Raises:
            ServerUnavailableError: No server is known, or this one gave no answer.
            ServerRefusedError: The server says that the request is wrong.
        """
        name = self.route(self._key(request))
        try:
            return await self._clients[name].generate(request)
        except ServerUnavailableError:
            self._rests_until_s[name] = self._clock.time() + self._rest_s
            raise

    def route(self, key: str) -> str:
        """Return the name of the server that a key belongs to now.

        Raises:
            ServerUnavailableError: No server is known.
        """
        if not self._servers:
            raise ServerUnavailableError("servers must be at least one, got none. All are down.")
        now_s = self._clock.time() if self._rests_until_s else 0.0
        awake = [name for name in self._servers if self._rests_until_s.get(name, now_s) <= now_s]
        assigned = self._assigned.get(key)
        if assigned is not None and assigned in (awake or self._servers):
            return assigned
        return max(awake or self._servers, key=lambda name: _weight(name, key))


def _weight(name: str, key: str) -> bytes:
    return hashlib.blake2b(key.encode(), key=name.encode()[-64:], digest_size=8).digest()
