"""Copy and paste: each slot by itself, each episode anew."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import pytest
from aiohttp import web
from webrl.actions import GoBack, LeftClick, Navigate, Press, to_grid
from webrl.browser import BrowserConfig, BrowserPool, BrowserSession
from webrl.tasks import Task, TaskServer, load_task

pytestmark = pytest.mark.browser
_T = TypeVar("_T")
COPY_PASTE = load_task("miniwob/copy-paste")

_PAGE = """<input id=from value="first"><input id=to><input id=secret type=password value=hidden>
<textarea id=lines></textarea><div id=rich contenteditable>rich <b>bold</b></div>
<div id=own tabindex=0></div><button id=button>copy</button><script>
own.addEventListener('copy', (e) => { e.clipboardData.setData('text/plain', 'own'); e.preventDefault(); });
own.addEventListener('paste', (e) => { own.dataset.got = e.clipboardData.getData('text/plain');
  e.preventDefault(); });
button.addEventListener('click', () => { document.getElementById('from').select(); document.execCommand('copy'); });
</script>"""


async def _answer(_: web.BaseRequest) -> web.Response:
    return web.Response(text=_PAGE, content_type="text/html")


def _run(body: Callable[[BrowserPool, Task], Awaitable[_T]]) -> _T:
    """Run `body` with a pool of two slots and a task whose page has what copies and pastes."""

    async def main() -> _T:
        async with (
            TaskServer(routes={"/clip": _answer}) as server,
            BrowserPool(BrowserConfig(num_slots=2), server=server) as pool,
        ):
            task = Task(suite="web", name="clip", url="/clip", goal="g", answer="x", max_steps=99)
            return await body(pool, task)

    return asyncio.run(main())


async def _press(session: BrowserSession, focus: str, *keys: str) -> None:
    await session.evaluate(f"void document.getElementById('{focus}').focus()")
    for key in keys:
        await session.step(Press(key))


async def _value(session: BrowserSession, name: str) -> object:
    return await session.evaluate(f"document.getElementById('{name}').value")


def test_two_slots_that_take_turns_paste_what_each_of_them_copied() -> None:
    async def body(pool: BrowserPool, _: Task) -> list[float | None]:
        sessions = [await pool.session(), await pool.session()]
        rewards: list[float | None] = []
        for seed in (1, 3):
            for number, session in enumerate(sessions):
                await session.reset(COPY_PASTE, seed + number)
            for steps in (
                ("document.querySelector('#area textarea')", "Control+a", "Control+c"),
                ("document.querySelector('#area input')", "Control+v"),
            ):
                for session in sessions:
                    await session.evaluate(f"void {steps[0]}.focus()")
                for key in steps[1:]:
                    for session in sessions:
                        await session.step(Press(key))
            for session in sessions:
                await session.evaluate("void document.getElementById('subbtn').focus()")
                rewards.append((await session.step(Press("Enter"))).raw_reward)
        return rewards

    assert _run(body) == [1.0] * 4


@pytest.mark.parametrize("reset", ["new_context", "reload", "keep_page"])
def test_the_next_episode_and_the_other_slot_find_nothing_to_paste(reset: str) -> None:
    async def body(pool: BrowserPool, plain: Task) -> list[object]:
        script = "document.getElementById('to').value = '', {goal: 'g'}"
        task = msgspec.structs.replace(plain, reset=reset, start_script=script)
        pasted: list[object] = []
        session, other = await pool.session(), await pool.session()
        await session.reset(task, 0)
        await _press(session, "from", "Control+a", "Control+c")
        await other.reset(task, 0)
        await session.reset(task, 1)
        for each in (session, other):
            await _press(each, "to", "Control+v", "Shift+Insert", "Control+Shift+v")
            pasted.append(await _value(each, "to"))
        return pasted

    assert _run(body) == ["", ""]


def test_copied_text_follows_the_episode_through_its_documents() -> None:
    async def body(pool: BrowserPool, task: Task) -> list[object]:
        session = await pool.session()
        await session.reset(task, 0)
        url = str(await session.evaluate("location.href"))
        pasted: list[object] = []
        await _press(session, "from", "Control+a", "Control+c")
        await session.step(Navigate(f"{url}?2"))
        await _press(session, "to", "Control+v")
        pasted.append(await _value(session, "to"))
        await session.evaluate("void (document.getElementById('to').value = 'second')")
        await _press(session, "to", "Control+a", "Control+x")
        pasted.append(await _value(session, "to"))
        await session.step(GoBack())
        await _press(session, "lines", "Control+v")
        pasted.append(await _value(session, "lines"))
        return pasted

    assert _run(body) == ["first", "", "second"]


def test_copying_and_pasting_do_what_they_do_in_a_browser() -> None:
    async def body(pool: BrowserPool, task: Task) -> dict[str, object]:
        session, found = await pool.session(), dict[str, object]()
        await session.reset(task, 0)
        box = await session.evaluate(
            "(r => [r.left + 5, r.top + 5])(document.getElementById('button').getBoundingClientRect())"
        )
        assert isinstance(box, list)
        await session.step(LeftClick(*to_grid(*box, width=160, height=224)))
        await _press(session, "to", "Control+v", "Control+v")
        found["by a button of the page"] = await _value(session, "to")
        await _press(session, "secret", "Control+a", "Control+c")
        await _press(session, "lines", "Control+v", "Control+c", "Control+v")
        found["not from a password, nor from nothing"] = await _value(session, "lines")
        await _press(session, "own", "Control+v", "Control+c")
        found["pasted into a page's handler"] = await session.evaluate(
            "document.getElementById('own').dataset.got"
        )
        await _press(session, "to", "Control+a", "Control+v")
        found["copied by a page's handler"] = await _value(session, "to")
        await _press(session, "rich", "Control+a", "Control+c", "End", "Control+v")
        found["with its format"] = await session.evaluate(
            "document.getElementById('rich').querySelectorAll('b').length"
        )
        await _press(session, "to", "Control+a", "Control+v")
        found["without it"] = await _value(session, "to")
        return found

    assert _run(body) == {
        "by a button of the page": "firstfirst",
        "not from a password, nor from nothing": "firstfirst",
        "pasted into a page's handler": "first",
        "copied by a page's handler": "own",
        "with its format": 2,
        "without it": "rich bold",
    }
