"""What `webrl doctor --config` finds out: whether the web can be reached as a configuration says.

Invariants: a check never raises for what it finds; no secret stands in what it says; what it opened
is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

from webrl.browser import BrowserConfig, BrowserPool, Deadlines, UpstreamConfig
from webrl.browser.live_browser import NO_UDP
from webrl.browser.upstream import UnreachedError, UpstreamError, UpstreamProxy
from webrl.config import WebRLConfig
from webrl.errors import WebRLError
from webrl.machine_check import Check, check_browsers
from webrl.tasks import Task

_CONNECT_S = 10.0
_NOWHERE = "webrl.invalid"
"""A name that no network has: a proxy that takes the credentials says that it does not reach it."""
_PAGE = Task(suite="web", name="check", url="/miniwob/click-test.html", goal="Look.", answer="x")


def check_reach(config: WebRLConfig) -> Iterator[Check]:
    """Yield one check for the proxy, and one for each browser that runs elsewhere."""
    env = config.env
    if env.proxy is None:
        yield Check("proxy", True, "none: env.proxy is unset")
    else:
        upstream = UpstreamConfig(url=env.proxy, credentials_env=env.proxy_credentials_env)
        yield asyncio.run(_check_proxy(upstream))
    if not env.browsers:
        yield check_browsers(config)
    for address in env.browsers:
        browser = BrowserConfig(
            num_slots=1,
            remotes=(address,),
            is_guarded=env.browser_network == "guarded",
            deadlines=Deadlines(launch_s=_CONNECT_S),
        )
        yield asyncio.run(_check_browser(browser, address))


async def _check_proxy(config: UpstreamConfig) -> Check:
    fix = "Look at env.proxy, and at the variable that env.proxy_credentials_env names."
    try:
        proxy = UpstreamProxy(config, connect_s=_CONNECT_S)
        with suppress(UnreachedError):
            _, writer = await proxy.tunnel(_NOWHERE, 443)
            writer.close()
    except (UpstreamError, WebRLError) as error:
        return Check("proxy", False, str(error), fix)
    taken = "" if config.credentials_env is None else " and takes the credentials"
    return Check("proxy", True, f"{proxy.name} answers{taken}")


async def _check_browser(config: BrowserConfig, address: str) -> Check:
    fix = "Start it with --remote-debugging-port, and look at its address in env.browsers."
    try:
        async with BrowserPool(config) as pool:
            browser = await pool.browser()
            detail = f"{address} answers, version {browser.browser.version}"
            if not config.is_guarded:
                return Check("browser", True, detail)
            async with await pool.session() as session:
                await session.reset(_PAGE, 0)
            line = await browser.command_line(config.deadlines.evaluate_s)
    except WebRLError as error:
        return Check("browser", False, str(error), fix)
    if NO_UDP in line:
        return Check("browser", True, f"{detail}, pages go through the guard")
    return Check(
        "browser",
        False,
        f"{detail}; its pages may send UDP around the guard",
        f"Start it with {NO_UDP} too.",
        is_required=False,
    )
