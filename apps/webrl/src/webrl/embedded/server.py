"""A server behind its HTTP side: answers until it is told to end.

Invariants:

* The port is taken before the model is loaded, so that a taken one costs no time; nothing is
  answered before the model is ready (connections wait in the socket's backlog until then).
* At the end nothing is left: requests in flight are answered with `abort`, the model thread is
  joined, groups end with the process.
* A server with a token refuses a request without it before its body is read, whatever the route.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import signal
import socket

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from webrl.embedded.generation_routes import generation_routes
from webrl.embedded.state import STATE, ServerState
from webrl.embedded.weight_routes import weight_routes
from webrl.errors import BadRequestError, WeightUpdateError

logger = logging.getLogger(__name__)

_STOP_DEADLINE_S = 1.5
"""Seconds for the model thread to end a step; a thread in a longer one ends with the process."""


def build_app(state: ServerState) -> web.Application:
    """Return the HTTP application over `state`."""
    middlewares: list[Middleware] = [_errors]
    if state.config.token:
        middlewares.insert(0, token_check(state.config.token))
    app = web.Application(middlewares=middlewares, client_max_size=state.config.max_body_bytes)
    app[STATE] = state
    app.add_routes([*generation_routes(), *weight_routes()])
    return app


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn our errors into SGLang's answers; the boundary of the HTTP side."""
    try:
        return await handler(request)
    except BadRequestError as error:
        return _failure(400, {"error": {"message": str(error)}})
    except WeightUpdateError as error:
        return _failure(400, {"success": False, "message": str(error)})
    except web.HTTPException:
        raise
    except Exception as error:
        logger.exception("%s %s failed", request.method, request.path)
        message = f"{type(error).__name__}: {error}"
        return _failure(500, {"success": False, "error": {"message": message}})


def _failure(status: int, body: dict[str, object]) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode(body), content_type="application/json"
    )


async def serve(state: ServerState, listener: socket.socket) -> None:
    """Start the model thread and answer on `listener` until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    state.engine.start()
    runner = web.AppRunner(
        build_app(state), handler_cancellation=True, access_log=None, shutdown_timeout=0.5
    )
    await runner.setup()
    site = web.SockSite(runner, listener)
    await site.start()
    host, port = listener.getsockname()[:2]
    logger.info("embedded server ready at http://%s:%d (%s)", host, port, state.model_path)
    await stop.wait()
    await state.engine.call(lambda scheduler: scheduler.abort(""))
    await runner.cleanup()
    if not state.engine.stop(_STOP_DEADLINE_S):
        logger.warning("the model thread is in a long step; it ends with the process")


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
