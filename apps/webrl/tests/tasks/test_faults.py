"""The FaultWoB pack as data, and its site."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from webrl.tasks import FAULT_CASES, TaskServer, load_task
from webrl.tasks.fault_pages import FAULT_PAGES
from webrl.tasks.fault_site import page_html


def test_every_case_is_a_task_by_name() -> None:
    for name, case in FAULT_CASES.items():
        assert load_task(f"fault/{name}") == case.task


def test_every_page_is_used_by_a_case_or_by_another_page() -> None:
    used = {case.task.url.rpartition("/")[2].removesuffix(".html") for case in FAULT_CASES.values()}
    assert set(FAULT_PAGES) - used == {"bounce-back"}


def test_every_case_expects_exactly_one_end() -> None:
    for case in FAULT_CASES.values():
        assert (case.reward is None) != (case.fault is None)
        assert case.task.max_steps == len(case.actions)


@pytest.mark.parametrize("name", sorted(FAULT_PAGES))
def test_every_page_is_served_whole(name: str) -> None:
    html = page_html(name)
    assert html is not None
    assert html.startswith("<!doctype html>")
    assert "%(" not in html


def test_a_page_that_does_not_exist_is_not_found() -> None:
    async def main() -> list[int]:
        statuses: list[int] = []
        async with TaskServer() as server, aiohttp.ClientSession() as http:
            for path in ("plain.html", "second.html", "no-page.html", "down", "wall", "auth"):
                async with http.get(f"{server.base_url}/fault/{path}") as answer:
                    statuses.append(answer.status)
        return statuses

    assert asyncio.run(main()) == [200, 200, 404, 503, 403, 401]


def test_what_never_answers_ends_with_its_client() -> None:
    async def main() -> None:
        async with TaskServer() as server:
            for path in ("never", "stream"):
                host, port = server.base_url.removeprefix("http://").split(":")
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(f"GET /fault/{path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                await writer.drain()
                writer.close()
            async with aiohttp.ClientSession() as http:
                with pytest.raises(aiohttp.ClientError):
                    await http.get(f"{server.base_url}/fault/cut")

    asyncio.run(main())
