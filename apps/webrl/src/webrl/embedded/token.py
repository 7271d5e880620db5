"""Lets in who knows the token: what a server that listens beyond loopback must ask for.

Invariant: a request without it is refused before its body is read, whatever the route.
"""

from __future__ import annotations

import hmac

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

__all__ = ["token_check"]


def token_check(token: str) -> Middleware:
    """Return what answers 401 to every request without `Authorization: Bearer TOKEN`."""
    wanted = f"Bearer {token}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, wanted):
            return web.json_response(
                {"error": {"message": "the token is wrong or missing"}}, status=401
            )
        return await handler(request)

    return check
