"""How the processes of a run reach each other: over loopback, or over the network with a token.

Invariants:
    * while every worker of a run is on the controller's node, all that listens does so on loopback;
    * else it listens on the address of its node, and every HTTP request needs the run's token;
    * the token travels in constructor arguments of Ray actors, in the environment of a server and in
      headers of requests: never in an argument of a command, a log or a file.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field

import psutil
import ray
from awrl_rollout import SGLangClient, SGLangClientConfig

LOOPBACK = "127.0.0.1"
"""Where everything listens that only this machine needs."""

INTERFACE_VARIABLES = {"GLOO_SOCKET_IFNAME": "", "NCCL_SOCKET_IFNAME": "="}
"""Where gloo and nccl read the interface to meet on, and what goes before its name. Gloo would listen
where the host's name points to, nccl on the first interface that it finds: neither need be one that
other nodes reach. Nccl takes a bare name for the beginning of one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkConfig:
    """Where the processes of one run listen, and what they ask for."""

    token: str | None = field(default=None, repr=False)
    """What requests must carry; None while nobody but this machine can send one."""

    def host(self) -> str:
        """Return the address on which a process of this node listens."""
        return LOOPBACK if self.token is None else ray.util.get_node_ip_address()

    def environment(self) -> dict[str, str]:
        """Return what makes gloo and nccl listen on `host` too.

        What stands in the environment stays; nothing where no interface has that address.
        """
        host = self.host()
        names = [
            name
            for name, addresses in psutil.net_if_addrs().items()
            if any(address.address == host for address in addresses)
        ]
        return {
            variable: mark + name
            for variable, mark in INTERFACE_VARIABLES.items()
            for name in names[:1]
            if variable not in os.environ
        }

    def client(self, url: str, config: SGLangClientConfig | None = None) -> SGLangClient:
        """Return a client of one of the run's inference servers.

        Args:
            config: Limits; the defaults when None.
        """
        return SGLangClient(url, config=config, token=self.token)


LOCAL = NetworkConfig()
"""Everything on this machine."""


def network_of(node_ids: Collection[str]) -> NetworkConfig:
    """Return how processes on these nodes and the calling one reach each other.

    Args:
        node_ids: Ray's ids of the nodes that hold workers.
    """
    here = ray.get_runtime_context().get_node_id()
    return LOCAL if set(node_ids) <= {here} else NetworkConfig(token=secrets.token_urlsafe(32))
