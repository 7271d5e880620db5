"""One generation front over several inference servers.

Invariants:
    * an episode goes to one server, so that its prefix cache serves every turn; siblings do not: a
      group on one server leaves others without work, since groups are few beside many servers;
    * a server that gives no answer rests, and its episodes go to another one meanwhile;
    * after ``set_servers`` no further attempt goes to a server that is not in the list.
"""

from __future__ import annotations

from collections.abc import Sequence

from awrl_rollout import (
    GenerateRequest,
    GenerateResult,
    GenerationConfig,
    InterruptibleGenerator,
    SGLangClient,
    SGLangClientConfig,
    StickyRouter,
)

from webrl.cluster.network import LOCAL, Reach

MAX_FAILURES = 8
"""With the generator's waits about 7 s: by then a server's death is known and requests are held."""


class ServerRouter:
    """A ``GenerateClient`` that picks a server for each request by its episode."""

    def __init__(
        self, urls: Sequence[str], *, initial_version: int = 0, reach: Reach = LOCAL
    ) -> None:
        """Open clients lazily.

        Args:
            urls: Base URLs of the servers.
            initial_version: Version of tokens from a server that was never updated.
            reach: How to talk to them.
        """
        self._reach = reach
        self._config = SGLangClientConfig(initial_version=initial_version)
        self._clients: dict[str, SGLangClient] = {}
        self._router = StickyRouter({})
        self.set_servers(urls)

    def set_servers(self, urls: Sequence[str]) -> None:
        """Route to these servers from now on."""
        for url in urls:
            if url not in self._clients:
                self._clients[url] = self._reach.client(url, self._config)
        self._router.set_clients({url: self._clients[url] for url in urls})

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Return one attempt of the server that the request's episode belongs to.

        Raises:
            ServerUnavailableError: No server is known, or it gave no answer.
            ServerRefusedError: The server says that the request is wrong.
        """
        return await self._router.generate(request)

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
    config = GenerationConfig(deadline_s=deadline_s, max_failures=MAX_FAILURES)
    return InterruptibleGenerator(router, config=config)
