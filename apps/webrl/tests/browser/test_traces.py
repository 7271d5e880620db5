"""No trace of an episode in the next one: every page, after random input, against an untouched one."""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image
from webrl.actions import (
    Action,
    DoubleClick,
    Drag,
    Hover,
    LeftClick,
    Press,
    Scroll,
    TypeText,
    to_grid,
)
from webrl.browser import BrowserConfig, BrowserPool, BrowserSession
from webrl.tasks import Task, html_root, load_task, miniwob_names

pytestmark = [pytest.mark.browser, pytest.mark.slow]

_STATE = r"""(() => {
  const OWN = '#reward-display,#click-canvas,#awrl-style';
  const TIMES = /^(core|WOB_EPISODE_ID|exitTime|lastRecorded|jQuery\d*|\$|d3)$/;
  const plain = (text) => text.replace(/(ui-id-|dp|tabs-)\d+/g, '$1N');
  const found = {}, copy = document.documentElement.cloneNode(true);
  copy.querySelectorAll(OWN).forEach((e) => e.remove());
  found.html = plain(copy.outerHTML);
  found.fields = [], found.handlers = {};
  for (const e of [window, document, ...document.querySelectorAll('*')]) {
    if (e.closest && e.closest(OWN)) continue;
    const values = [e.scrollTop, e.scrollLeft, e.value, e.checked, e.selectedIndex, e.open];
    if (e.localName && values.some((v) => v)) found.fields.push([e.localName, e.id, ...values.map(String)]);
    const events = window.$ && $._data ? $._data(e, 'events') || {} : {};
    for (const [name, all] of Object.entries(events)) {
      const place = [e.localName || 'page', plain(e.id || ''), name].join(' ');
      found.handlers[place] = (found.handlers[place] || 0) + all.length;
    }
  }
  const frame = document.body.appendChild(document.createElement('iframe'));
  const known = new Set(Object.getOwnPropertyNames(frame.contentWindow));
  frame.remove();
  const look = (value, depth) => {
    if (typeof value === 'function') return 'function';
    if (typeof value !== 'object' || value === null) return String(value);
    if (value === window || value instanceof Node || depth === 0) return 'object';
    return Object.fromEntries(Object.keys(value).filter((k) => !TIMES.test(k)).slice(0, 80).map((k) => [k, look(value[k], depth - 1)]));
  };
  found.globals = {};
  for (const name of Object.getOwnPropertyNames(window))
    if (!known.has(name) && !TIMES.test(name) && !/^\d+$/.test(name)) found.globals[name] = look(window[name], 3);
  found.stored = [JSON.stringify(localStorage), JSON.stringify(sessionStorage), document.cookie, name];
  found.focus = [document.activeElement && document.activeElement.id, getSelection().toString()];
  found.place = [scrollX, scrollY, innerWidth, innerHeight, devicePixelRatio, location.href];
  found.motion = [document.getAnimations().length, window.$ && $.timers ? $.timers.length : 0];
  return found;
})()"""

_SPOTS = """Array.from(document.querySelectorAll('body *'))
  .filter((e) => !e.closest('#reward-display,#click-canvas,#sync-task-cover'))
  .map((e) => e.getBoundingClientRect()).filter((r) => r.width && r.height && r.width < 156)
  .map((r) => [r.left + r.width / 2, r.top + r.height / 2])
  .filter(([x, y]) => x >= 0 && y >= 0 && x < innerWidth && y < innerHeight)"""
_TEXTS = ("abc", "7", "12/05/2016", "zz\n")
_KEYS = (
    "Tab",
    "Enter",
    "ArrowDown",
    "PageDown",
    "End",
    "Control+a",
    "Backspace",
    "Escape",
    "Space",
)


def _action(generator: random.Random, task: Task, spots: list[list[float]]) -> Action:
    """Return a random action, mostly on an element."""

    def point() -> tuple[int, int]:
        width, height = task.viewport.width, task.viewport.height
        if spots and generator.random() < 0.85:
            return to_grid(*generator.choice(spots), width=width, height=height)
        return generator.randint(0, 999), generator.randint(0, 999)

    wheel = (generator.choice([0, -300, 300]), generator.choice([-500, 300, 800]))
    kinds: tuple[Action, ...] = (
        LeftClick(*point()),
        DoubleClick(*point()),
        TypeText(generator.choice(_TEXTS)),
        Press(generator.choice(_KEYS)),
        Drag(*point(), *point()),
        Scroll(*point(), *wheel),
        Hover(*point()),
    )
    return generator.choices(kinds, weights=[40, 8, 14, 10, 10, 13, 5])[0]


async def _play(session: BrowserSession, task: Task, generator: random.Random) -> None:
    await session.reset(task, generator.randrange(1000))
    for _ in range(generator.choice([3, 5, 7])):
        spots = await session.evaluate(_SPOTS)
        assert isinstance(spots, list)
        if (await session.step(_action(generator, task, spots))).is_done:
            return


async def _look(session: BrowserSession, task: Task, seed: int) -> dict[str, Any]:
    observation = await session.reset(task, seed)
    await asyncio.sleep(0.3)  # timers and animations that an episode left behind would show
    state = await session.evaluate(_STATE)
    assert isinstance(state, dict)
    return {**state, "goal": observation.goal, "pixels": observation.screenshot}


def _is_alike(one: bytes, other: bytes) -> bool:
    """Return whether two pictures show the same: the rasteriser may round an edge either way."""
    first, second = (
        np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")) for shot in (one, other)
    )
    return first.shape == second.shape and int(np.abs(first.astype(int) - second).max()) <= 2


async def _traces(
    used: BrowserSession, unused: BrowserSession, task: Task, generator: random.Random
) -> list[str]:
    """Return what differs between a used page and an untouched one."""
    task = msgspec.structs.replace(task, max_steps=20)
    await _play(used, task, generator)
    fresh = msgspec.structs.replace(task, reset="new_context")
    seed = generator.randrange(1000)
    differing: set[str] = set()
    for is_again in (False, True):  # a busy machine can draw a picture late: a trace shows twice
        found, right = await _look(used, task, seed), await _look(unused, fresh, seed)
        compared = found.keys() if task.is_steady else ("stored", "goal", "place")
        now = {
            name
            for name in compared
            if found[name] != right[name]
            and not (name == "pixels" and _is_alike(found[name], right[name]))
        }
        differing = differing & now if is_again else now
        if not differing:
            break
    return [f"{task.name}: {name}" for name in sorted(differing)]


def test_no_page_shows_or_keeps_anything_of_the_episodes_before() -> None:
    names: Iterator[str] = iter(miniwob_names())

    async def some(pool: BrowserPool) -> list[str]:
        traces: list[str] = []
        async with await pool.session() as used, await pool.session() as unused:
            for name in names:
                generator = random.Random(name)
                traces += await _traces(used, unused, load_task(f"miniwob/{name}"), generator)
        return traces

    async def main() -> list[str]:
        async with BrowserPool(BrowserConfig(num_slots=8)) as pool, asyncio.TaskGroup() as tasks:
            runs = [tasks.create_task(some(pool)) for _ in range(4)]
        return sorted(text for run in runs for text in run.result())

    assert asyncio.run(main()) == []
    pages = [*html_root().glob("miniwob/*.html"), *html_root().glob("flight/*/wrapper.html")]
    assert len(miniwob_names()) == len(pages) == 134
