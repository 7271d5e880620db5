"""Pages that end the browser are found out; those that stood beside are not."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from webrl.browser import BrowserConfig, BrowserPool
from webrl.browser.deadly_pages import DeadlyPages
from webrl.errors import BrowserFault
from webrl.tasks import Task, TaskServer

PAGE = "https://site.example/"


class _Time:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_second_death_of_a_browser_finds_a_page_out_for_a_while() -> None:
    time = _Time()
    pages = DeadlyPages(300.0, time)
    assert [pages.ended_browser(PAGE, browser) for browser in (1, 1, 1)] == [False] * 3
    pages.check(PAGE)
    assert pages.ended_browser(PAGE, 2)
    with pytest.raises(BrowserFault, match=r"site\.example/ is not opened for 300 s"):
        pages.check(PAGE)
    pages.check("https://other.example/")
    time.now_s = 301.0
    pages.check(PAGE)
    assert pages.ended_browser(PAGE, 3)


@given(st.lists(st.integers(min_value=4, max_value=9), max_size=20))
def test_a_page_that_goes_on_after_each_death_is_never_refused(uses: list[int]) -> None:
    pages = DeadlyPages(300.0, _Time())
    for browser, num_uses in enumerate(uses, start=1):
        assert not pages.ended_browser(PAGE, browser)
        for _ in range(num_uses):
            pages.ended_well(PAGE)


@given(st.lists(st.integers(min_value=0, max_value=3), min_size=4, max_size=20))
def test_a_page_that_ends_the_browser_every_few_uses_is_found_out(uses: list[int]) -> None:
    pages, found = DeadlyPages(300.0, _Time()), False
    for browser, num_uses in enumerate(uses, start=1):
        found |= pages.ended_browser(PAGE, browser)
        for _ in range(num_uses):
            pages.ended_well(PAGE)
    assert found


_DEEP = """<!doctype html><script>
let inner = document.documentElement
for (let i = 0; i < 20000; i++) inner = inner.appendChild(document.createElement('div'))
inner.textContent = 'deep'</script>"""


@pytest.mark.browser
def test_a_page_that_ends_the_browser_costs_two_of_them_and_the_pool_goes_on() -> None:
    async def site(request: web.BaseRequest) -> web.StreamResponse:
        text = _DEEP if request.path == "/deep" else "<!doctype html>fine"
        return web.Response(text=text, content_type="text/html")

    async def main() -> tuple[int, int]:
        config = BrowserConfig(num_slots=1, max_restarts=2)
        async with TaskServer(routes={"/": site}) as server, BrowserPool(config) as pool:

            def task(path: str) -> Task:
                url = server.base_url + path
                return Task(
                    suite="web", name=path, url=url, goal="g", answer="x", allow_private=True
                )

            async with await pool.session() as session:
                details: list[str] = []
                kinds: list[str] = []
                for seed in range(6):
                    with pytest.raises(BrowserFault) as caught:
                        await session.reset(task("/deep"), seed)
                    details.append(caught.value.detail)
                    kinds.append(caught.value.kind)
                assert "is not opened" in details[-1]
                assert set(kinds) <= {"page_crashed", "browser_lost", "deadly_page"}
                assert kinds[-1] == "deadly_page"
                num_launches = pool.statistics().num_browser_launches
                await session.reset(task("/fine"), 0)
                return num_launches, pool.statistics().num_browser_launches

    before, after = asyncio.run(main())
    assert before <= 3
    assert after - before <= 1
