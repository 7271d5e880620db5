"""Web sites on this machine: set latencies, a set share that shuts robots out, pages that link on.

Invariant: a site, its pages and whether it blocks follow from the seed alone.
"""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

from aiohttp import web

from webrl.rehearse.stub import StubServer

_NUM_PAGES = 20
"""Pages of one site."""
_NUM_BOXES = 12
"""Boxes of one page, of which half are links."""
_WALL = "<!doctype html><title>Just a moment...</title>Checking your browser"
_DIFFICULTIES = ("easy", "medium", "hard")


class RehearsedSite(StubServer):
    """Sites below one address; use it as `async with`.

    Args:
        num_sites: How many.
        latency_s: Mean wait before an answer, in seconds.
        latency_cv: Its standard deviation as a share of the mean.
        blocked_share: Share of the sites that answer with a wall against robots.
        silent_share: Share of requests that are never answered.
        host: Address to listen on.
        port: Port, or 0 for a free one.
        seed: Seed of all that is drawn.
    """

    def __init__(
        self,
        *,
        num_sites: int = 50,
        latency_s: float = 0.2,
        latency_cv: float = 1.0,
        blocked_share: float = 0.1,
        silent_share: float = 0.0,
        host: str = "127.0.0.1",
        port: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            latency_s=latency_s, latency_cv=latency_cv, host=host, port=port, seed=seed
        )
        self._num_sites = num_sites
        self._silent_share = silent_share
        self._seed = seed
        num_blocked = round(num_sites * blocked_share)
        self.blocked = frozenset(random.Random(seed).sample(range(num_sites), num_blocked))
        """Numbers of the sites that shut robots out."""
        self.num_blocked = 0
        """Requests that met a wall."""

    def routes(self) -> list[web.RouteDef]:
        """Return what it answers."""
        return [web.get(r"/site/{site:\d+}/{page:\d+}", self._page)]

    def write_tasks(self, path: Path, num_tasks: int) -> None:
        """Write tasks on the sites in turn, one a line, in WebGym's format."""
        lines = [
            {
                "task_id": f"rehearsal-{number}",
                "task_name": f"What does article {number} of shop {number % self._num_sites} cost?",
                "website": f"{self.base_url}/site/{number % self._num_sites}/0",
                "domain": "Shopping",
                "difficulty": _DIFFICULTIES[number % len(_DIFFICULTIES)],
                "evaluator_reference": [f"The page of article {number} is shown"],
                "reference_answer": f"{number} dollars",
                "allow_private": True,
            }
            for number in range(num_tasks)
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

    async def _page(self, request: web.Request) -> web.StreamResponse:
        site, page = int(request.match_info["site"]), int(request.match_info["page"])
        if site in self.blocked:
            self.num_blocked += 1
            return web.Response(status=403, text=_WALL, content_type="text/html")
        if self._rng.random() < self._silent_share:
            await asyncio.Event().wait()  # until the browser gives up
        return web.Response(text=_html(self._seed, site, page), content_type="text/html")


def _html(seed: int, site: int, page: int) -> str:
    """Return a page of boxes: every other one leads to another page of its site."""
    draw = random.Random(f"{seed} {site} {page}")
    boxes: list[str] = []
    for number in range(_NUM_BOXES):
        left, top = 320 * (number % 4), 60 + 220 * (number // 4)
        colour = f"hsl({draw.randrange(360)} 60% 80%)"
        style = f"left:{left}px;top:{top}px;background:{colour}"
        text = f"article {draw.randrange(1000)}, {draw.randrange(100)} dollars"
        target = f"/site/{site}/{draw.randrange(_NUM_PAGES)}"
        boxes.append(
            f'<a class=box style="{style}" href="{target}">{text}</a>'
            if number % 2
            else f'<div class=box style="{style}">{text}</div>'
        )
    return (
        f"<!doctype html><title>shop {site}, page {page}</title><style>.box{{position:absolute;"
        "width:300px;height:200px;font:20px sans-serif}</style>"
        f"<h1>Shop {site}</h1><input name=q>{''.join(boxes)}"
    )
