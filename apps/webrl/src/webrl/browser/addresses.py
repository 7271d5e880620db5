"""Which addresses a policy may open, decided before the browser hears of them.

Invariant: only `http` and `https` leave here; a local file, the browser's own pages and scripts in
place of an address are refused, whatever their spelling.
"""

from __future__ import annotations

from urllib.parse import urlsplit

ALLOWED_SCHEMES = frozenset({"http", "https"})
"""What `navigate` may open. `about:blank` is of no use to a policy."""


def refusal(url: str) -> str | None:
    """Return why `url` may not be opened, or `None` when it may.

    Args:
        url: What a policy asked for.
    """
    if any(ord(character) < 32 for character in url):
        return "an address must hold no control characters"
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        return f"an address must be well formed: {error}"
    if parts.scheme.lower() not in ALLOWED_SCHEMES:
        return f"an address must start with http:// or https://, got {parts.scheme or 'neither'}"
    if not parts.hostname:
        return "an address must name a host"
    if parts.username is not None or parts.password is not None:
        return "an address must hold no user name or password"
    return None if port is None or port > 0 else "a port must be > 0"
