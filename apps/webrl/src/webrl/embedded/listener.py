"""The listening socket, taken before the seconds of imports that the server needs."""

from __future__ import annotations

import socket

__all__ = ["open_socket"]


def open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        OSError: The address can't be taken; the message names it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OSError(
            error.errno, f"port {port} of {host} must be free, got: {error.strerror}"
        ) from error
    listener.listen(1024)
    return listener
