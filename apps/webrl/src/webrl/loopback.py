"""What an address says: whether it is one, and whether it stays on this machine."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`; a name but `localhost` is taken as not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_address(url: str) -> bool:
    """Return whether `url` is a well-formed address with http:// or https:// and a host."""
    try:
        parts = urlsplit(url)
        # The port is read on access, and may be no number.
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False
