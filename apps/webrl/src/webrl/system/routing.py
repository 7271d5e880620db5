"""One generation front over several inference servers.

Invariants:
    * siblings of a group go to one server, so that they share its prefix cache;
    * after ``set_servers`` no further attempt goes to a server that is not in the list.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from awrl_rollout import (
    GenerateRequest,
    GenerateResult,
    GenerationConfig,
    InterruptibleGenerator,
    ServerUnavailableError,
    SGLangClient,
    SGLangClientConfig,
)


class ServerRouter:
    """A ``GenerateClient`` that picks a server for each request by its group."""

    def __init__(self, urls: Sequence[str], *, initial_version: int = 0) -> None:
        """Open clients lazily.

        Args:
            urls: Base URLs of the servers.
            initial_version: Version of tokens from a server that was never updated.
        """
        self._config = SGLangClientConfig(initial_version=initial_version)
        self._clients: dict[str, SGLangClient] = {}
        self._urls: tuple[str, ...] = ()
        self.set_servers(urls)

    def set_servers(self, urls: Sequence[str]) -> None:
        """Route to these servers from now on."""
        for url in urls:
            if url not in self._clients:
                self._clients[url] = SGLangClient(url, config=self._config)
        self._urls = tuple(urls)

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Return one attempt of the server that the request's group belongs to.

        Raises:
            ServerUnavailableError: No server is known, or it gave no answer.
            ServerRefusedError: The server says that the request is wrong.
        """
        if not self._urls:
            raise ServerUnavailableError("servers must be at least one, got none. All are down.")
        group = request.episode_id.partition("/")[0]
        url = self._urls[zlib.crc32(group.encode()) % len(self._urls)]
        return await self._clients[url].generate(request)

    async def aclose(self) -> None:
        """Close every client."""
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()


def make_generator(router: ServerRouter, *, deadline_s: float) -> InterruptibleGenerator:
    """Return an interruptible generator over the router.

    Args:
        router: Sends the attempts.
        deadline_s: Limit of one request with all its attempts and pauses, in seconds.
    """
    return InterruptibleGenerator(router, config=GenerationConfig(deadline_s=deadline_s))
