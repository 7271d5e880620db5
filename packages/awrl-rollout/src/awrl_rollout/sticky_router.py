"""One `GenerateClient` over several servers, on which an episode stays.

Invariants:

* all attempts of one key (an episode, or a group of siblings) go to one server, so that its prefix
  cache serves every further turn and every resubmission;
* a server that joins or leaves moves only the keys that it gains or loses (rendezvous hashing);
* after `set_clients` no attempt goes to a server that is not among them;
* a server that gave no answer rests for a while, and its keys go to their second choice; when all
  rest, none does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

from awrl_rollout.clock import Clock, RealClock
from awrl_rollout.errors import ServerUnavailableError
from awrl_rollout.protocol import GenerateClient, GenerateRequest, GenerateResult


class StickyRouter:
    """Sends each request to the server that its key belongs to.

    Args:
        clients: The servers' clients by name; not owned, so not closed here.
        key: What stays together; default the whole `episode_id`.
        rest_s: Seconds without attempts after one that had no answer.
        clock: Source of time.
    """

    def __init__(
        self,
        clients: Mapping[str, GenerateClient],
        *,
        key: Callable[[GenerateRequest], str] = lambda request: request.episode_id,
        rest_s: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        self._clients = dict(clients)
        self._key = key
        self._rest_s = rest_s
        self._clock = RealClock() if clock is None else clock
        self._rests_until_s: dict[str, float] = {}

    def set_clients(self, clients: Mapping[str, GenerateClient]) -> None:
        """Route to these servers from now on; attempts on their way are not touched."""
        self._clients = dict(clients)
        self._rests_until_s.clear()

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
        if not self._clients:
            raise ServerUnavailableError("servers must be at least one, got none. All are down.")
        now_s = self._clock.time() if self._rests_until_s else 0.0
        awake = [name for name in self._clients if self._rests_until_s.get(name, now_s) <= now_s]
        return max(awake or self._clients, key=lambda name: _weight(name, key))


def _weight(name: str, key: str) -> bytes:
    return hashlib.blake2b(key.encode(), key=name.encode()[-64:], digest_size=8).digest()
