"""Tasks with an address, a goal and an evaluator; sites that are down; reports of other projects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest
from aiohttp import web
from shared_loop import SharedLoop
from webrl.actions import (
    Answer,
    ClickMark,
    GoBack,
    LeftClick,
    Navigate,
    Press,
    Scroll,
    TypeText,
    Wait,
)
from webrl.browser import BrowserConfig, BrowserPool, BrowserSession, Deadlines, StepOutcome
from webrl.errors import BrowserFault
from webrl.tasks import Task, TaskServer, Viewport, load_task

pytestmark = pytest.mark.browser
_T = TypeVar("_T")

_PAGES = {
    "/": """<a id=a href="/second" style="position:fixed;left:0;top:0;width:200px;height:100px">
        go</a><input id=i style="position:fixed;left:200px;top:0;width:200px;height:100px">
        <div style="height:3000px"></div>""",
    "/second": "<title>second</title>second",
    "/storm": "<script>while (true) alert('again')</script>",
    "/opens-code": """<body style="height:300px">
        <script>onclick = () => open('/code' + location.search)</script>""",
    "/code": """<input autofocus><script>let n = 0
        addEventListener(location.search.slice(1), () => { if (++n > 2) close() })</script>""",
    "/slow-image": '<img src="/never"><p>here</p>',
}


async def _site(request: web.BaseRequest) -> web.StreamResponse:
    if request.path == "/never":
        await asyncio.Event().wait()
    if request.path == "/wall":
        return web.Response(
            status=403, text="<title>Just a moment...</title>", content_type="text/html"
        )
    if request.path.startswith("/status/"):
        return web.Response(status=int(request.path.removeprefix("/status/")), text="an error")
    page = _PAGES.get(request.path)
    if page is None:
        return web.Response(status=404, text="no such page")
    return web.Response(text=f"<!doctype html>{page}", content_type="text/html")


@asynccontextmanager
async def _browsers() -> AsyncGenerator[tuple[BrowserPool, str]]:
    """Open a pool, and a site that is not the task server."""
    config = BrowserConfig(num_slots=2, deadlines=Deadlines(navigate_s=10.0), wait_s=0.2)
    async with TaskServer(routes={"/": _site}) as site, BrowserPool(config) as pool:
        yield pool, site.base_url


_SHARED = SharedLoop(_browsers)


@pytest.fixture(scope="module", autouse=True)
def _end_browsers() -> Iterator[None]:
    yield
    _SHARED.close()


def _run(body: Callable[[BrowserPool, BrowserSession, str], Awaitable[_T]]) -> _T:
    """Run `body` with a session and the address of a site that is not the task server."""

    async def main(opened: tuple[BrowserPool, str]) -> _T:
        pool, base_url = opened
        async with await pool.session() as session:
            return await body(pool, session, base_url)

    return _SHARED.run(main)


def _task(url: str, **changes: object) -> Task:
    values: dict[str, object] = {
        "suite": "web",
        "name": "site",
        "goal": "Look around.",
        "answer": "yes",
        "allow_private": True,
        "settle_s": 2.0,
        "viewport": Viewport(400, 300),
        "max_steps": 20,
    }
    return Task(url=url, **(values | changes))  # type: ignore[arg-type]


def test_reaching_the_final_address_is_the_success() -> None:
    async def body(_: BrowserPool, session: BrowserSession, base: str) -> tuple[object, ...]:
        await session.reset(_task(base + "/", final_url=".*/second", answer=None), 0)
        outcome = await session.step(LeftClick(250, 150))
        return outcome.is_done, outcome.reward, outcome.end_reason

    assert _run(body) == (True, 1.0, "task")


def test_a_session_goes_places_and_comes_back() -> None:
    async def body(_: BrowserPool, session: BrowserSession, base: str) -> list[str]:
        await session.reset(_task(base + "/"), 0)
        urls: list[str] = []
        for action in (Navigate(base + "/second"), GoBack(), LeftClick(250, 150), GoBack()):
            outcome = await session.step(action)
            assert outcome.observation is not None
            urls.append(outcome.observation.url.removeprefix(base))
        assert (await session.step(Answer("yes"))).reward == 1.0
        return urls

    assert _run(body) == ["/second", "/", "/second", "/"]


def test_keys_text_and_wheel_reach_the_page() -> None:
    async def body(_: BrowserPool, session: BrowserSession, base: str) -> list[object]:
        await session.reset(_task(base + "/"), 0)
        await session.step(LeftClick(750, 150))
        await session.step(TypeText("Hello, wörld"))
        await session.step(Press("Backspace"))
        typed = await session.evaluate("document.getElementById('i').value")
        await session.step(Press("Control+a"))
        await session.step(TypeText("x"))
        replaced = await session.evaluate("document.getElementById('i').value")
        await session.step(Scroll(500, 800, 0, 500))
        await session.step(Wait())
        unknown = await session.step(Press("NoSuchKey"))
        events = [event.kind for event in unknown.events]
        return [typed, replaced, await session.evaluate("scrollY"), events]

    assert _run(body) == ["Hello, wörl", "x", 150, ["no_effect"]]


def test_addresses_that_are_refused_are_told_to_the_policy() -> None:
    async def body(_: BrowserPool, session: BrowserSession, base: str) -> list[str]:
        first = await session.reset(_task(base + "/"), 0)
        texts: list[str] = []
        for url in ("file:///etc/passwd", "chrome://version", "javascript:alert(1)"):
            outcome = await session.step(Navigate(url))
            assert outcome.observation is not None
            assert outcome.observation.url == first.url
            texts += [event.kind for event in outcome.events]
        return texts

    assert _run(body) == ["refused"] * 3


def test_a_password_in_an_address_is_not_told() -> None:
    async def body(_: BrowserPool, session: BrowserSession, base: str) -> list[str]:
        await session.reset(_task(base + "/"), 0)
        texts: list[str] = []
        for target in ("_blank", "_self"):
            await session.evaluate(
                "a.href = location.origin.replace('//', '//user:secret@') + '/second';"
                f"a.target = '{target}'"
            )
            outcome = await session.step(LeftClick(100, 100))
            assert outcome.observation is not None
            texts += [outcome.observation.url, *map(str, outcome.events)]
            await session.step(GoBack())
        return texts

    texts = _run(body)
    assert len(texts) == 3
    assert all(text.endswith("/second") and "secret" not in text for text in texts)


def test_an_address_that_does_not_answer_is_an_event_and_not_the_end() -> None:
    async def body(_: BrowserPool, session: BrowserSession, base: str) -> tuple[list[str], bool]:
        await session.reset(_task(base + "/"), 0)
        outcome = await session.step(Navigate("http://127.0.0.1:9/"))
        back = await session.step(GoBack())
        assert back.observation is not None
        return [event.kind for event in outcome.events], back.observation.url == base + "/"

    kinds, is_back = _run(body)
    assert kinds == ["navigation_error"]
    assert is_back


def test_an_image_that_never_arrives_does_not_hold_the_page() -> None:
    # playwright#37226: waiting for an idle network never ends.
    async def body(_: BrowserPool, session: BrowserSession, base: str) -> bytes:
        task = _task(base + "/slow-image", settle_s=0.3)
        return (await session.reset(task, 0)).screenshot

    assert _run(body).startswith(b"\x89PNG")


def test_a_site_that_is_down_is_given_up_twice_and_the_session_lives() -> None:
    # Two failing visits in a row leave a page whose close never returns (no report known): the
    # session must come back all the same.
    async def body(_: BrowserPool, session: BrowserSession, base: str) -> tuple[list[str], str]:
        kinds: list[str] = []
        for _attempt in range(2):
            with pytest.raises(BrowserFault) as caught:
                await session.reset(_task("http://127.0.0.1:9/"), 0)
            kinds.append(caught.value.kind)
        return kinds, (await session.reset(_task(base + "/"), 0)).url.removeprefix(base)

    assert _run(body) == (["navigation_error"] * 2, "/")


def test_a_wall_to_robots_is_blocked_and_no_failure() -> None:
    # WebVoyager#11, BrowserGym#319: an interstitial counted as the policy's failure.
    async def body(_: BrowserPool, session: BrowserSession, base: str) -> str:
        with pytest.raises(BrowserFault) as caught:
            await session.reset(_task(base + "/wall"), 0)
        return caught.value.kind

    assert _run(body) == "blocked"


def test_half_a_character_in_a_page_harms_nobody() -> None:
    async def body(pool: BrowserPool, session: BrowserSession, base: str) -> tuple[object, ...]:
        async with await pool.session() as other:
            await session.reset(_task(base + "/"), 0)
            await other.reset(_task(base + "/"), 0)
            read = await session.evaluate("document.title = 'a\\ud800b'")
            await session.evaluate("void setTimeout(() => alert('\\udc00'), 0)")
            event = (await session.step(Wait())).events[0]
            return read, event.detail, await other.evaluate("1 + 1")

    read, detail, two = _run(body)
    assert (read, two) == ("a?b", 2)
    assert str(detail).encode("utf-8")


def test_a_state_script_that_never_works_is_nobodys_failure() -> None:
    async def body(_: BrowserPool, session: BrowserSession, base: str) -> str:
        with pytest.raises(BrowserFault) as caught:
            await session.reset(_task(base + "/", state_script="nobody.knows"), 0)
        return caught.value.kind

    assert _run(body) == "page_error"


def test_leaving_the_page_that_knows_the_state_is_the_policys_failure() -> None:
    async def body(_: BrowserPool, session: BrowserSession, base: str) -> StepOutcome:
        script = "({done: false, reward: document.getElementById('i').value.length})"
        await session.reset(_task(base + "/", state_script=script), 0)
        return await session.step(Navigate(base + "/second"))

    outcome = _run(body)
    assert (outcome.end_reason, outcome.reward) == ("page_error", 0.0)


def test_a_missing_page_that_the_policy_opens_is_shown_to_it() -> None:
    async def body(_: BrowserPool, session: BrowserSession, base: str) -> str:
        await session.reset(_task(base + "/"), 0)
        outcome = await session.step(Navigate(base + "/no-such-page"))
        assert outcome.observation is not None
        return outcome.observation.url.removeprefix(base)

    assert _run(body) == "/no-such-page"


def test_two_hundred_cancelled_scripts_harm_no_page() -> None:
    # playwright-python#2581, #2238: cancellation gave InvalidStateError for ever after.
    async def body(_: BrowserPool, session: BrowserSession, base: str) -> object:
        await session.reset(_task(base + "/"), 0)
        for _attempt in range(200):
            async with asyncio.TaskGroup() as tasks:
                hung = tasks.create_task(session.evaluate("new Promise(() => {})"))
                await asyncio.sleep(0)
                hung.cancel()
        return await session.evaluate("1 + 1")

    assert _run(body) == 2


def test_marked_screenshots_number_what_can_be_clicked() -> None:
    async def main() -> list[object]:
        config = BrowserConfig(num_slots=1, is_marked=True)
        async with BrowserPool(config) as pool, await pool.session() as session:
            observation = await session.reset(load_task("miniwob/click-button-sequence"), 3)
            texts = sorted(mark.text for mark in observation.marks)
            nothing = await session.step(ClickMark(99))
            left = await session.evaluate("document.querySelectorAll('awrl-marks').length")
            rewards: list[object] = []
            for wanted in ("button: ONE", "button: TWO"):
                assert nothing.observation is not None
                marks = nothing.observation.marks
                number = next(mark.number for mark in marks if mark.text == wanted)
                outcome = await session.step(ClickMark(number))
                rewards.append(outcome.reward)
            return [texts, [event.kind for event in nothing.events], left, rewards]

    texts, events, left, rewards = asyncio.run(main())
    assert texts == ["button: ONE", "button: TWO"]
    assert events == ["no_effect"]
    assert left == 0
    assert rewards == [None, 1.0]


_STATUS_OF_KIND = {
    "blocked": (401, 403, 429, 451),
    "no_page": (404, 410),
    "navigation_error": (400, 500, 503),
}


def test_no_episode_starts_on_a_page_of_an_error() -> None:
    async def body(_: BrowserPool, session: BrowserSession, base: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {kind: [] for kind in _STATUS_OF_KIND}
        for status in sorted(sum(_STATUS_OF_KIND.values(), ())):
            with pytest.raises(BrowserFault, match=str(status)) as caught:
                await session.reset(_task(f"{base}/status/{status}"), 0)
            found[caught.value.kind].append(status)
        return found

    assert _run(body) == {kind: list(statuses) for kind, statuses in _STATUS_OF_KIND.items()}


@pytest.mark.parametrize("address", ["{site}/", "http://10.0.0.1/", "https://127.0.0.1:8443/"])
def test_a_start_at_a_private_address_says_so(address: str) -> None:
    async def body(_: BrowserPool, session: BrowserSession, base: str) -> None:
        with pytest.raises(BrowserFault, match=r"allow_private = true") as caught:
            await session.reset(_task(address.format(site=base), allow_private=False), 0)
        assert caught.value.kind == "refused"

    _run(body)


@pytest.mark.parametrize("moment", ["keydown", "keypress", "input", "keyup"])
def test_a_popup_that_closes_at_a_key_is_no_fault(moment: str) -> None:
    async def body(_: BrowserPool, session: BrowserSession, base: str) -> tuple[str, list[str]]:
        await session.reset(_task(f"{base}/opens-code?{moment}"), 0)
        await session.step(LeftClick(500, 500))
        outcome = await session.step(TypeText("123456"))
        assert outcome.observation is not None
        return outcome.observation.url, [event.kind for event in outcome.events]

    url, events = _run(body)
    assert "/opens-code" in url
    assert "page_closed" in events


def test_alerts_without_end_while_a_page_loads_are_a_dialog_storm() -> None:
    async def body(pool: BrowserPool, session: BrowserSession, base: str) -> tuple[str, int]:
        await session.reset(_task(base + "/second"), 0)
        before = pool.statistics().num_browser_launches
        with pytest.raises(BrowserFault) as caught:
            await session.reset(_task(base + "/storm"), 0)
        return caught.value.kind, pool.statistics().num_browser_launches - before

    assert _run(body) == ("dialog_storm", 0)
