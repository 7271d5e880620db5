"""Keys: whatever is asked for, nothing stays pressed."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webrl.actions import Press, TypeText
from webrl.browser import BrowserConfig, BrowserPool, BrowserSession
from webrl.browser.keyboard import KEY_EVENT, LONGEST_TYPED, KeyCall, chord_calls, text_calls
from webrl.tasks import load_task

NAMES = [
    "Control",
    "Alt",
    "Shift",
    "Meta",
    "Enter",
    "Escape",
    "a",
    "A",
    "7",
    "+",
    " ",
    "KeyB",
    "F5",
]
BAD = ["Esc", "enter", "Return", "Del", "Foo", "", "ctrl", "é", "Unidentified"]
TASK = load_task("miniwob/enter-text")


def _held(calls: list[KeyCall]) -> set[object]:
    """Return the keys that are down at the end."""
    held: set[object] = set()
    for method, event in calls:
        if method == KEY_EVENT:
            (held.discard if event["type"] == "keyUp" else held.add)(event["code"])
    return held


@given(st.lists(st.sampled_from(NAMES + BAD), min_size=1, max_size=5).map("+".join) | st.text())
def test_a_chord_is_released_in_full_or_not_pressed_at_all(chord: str) -> None:
    calls = chord_calls(chord)
    if calls is None:
        return
    assert _held(calls) == set()
    last = calls[-1][1]
    assert (last["type"], last["modifiers"]) == ("keyUp", 0)


@given(st.text(max_size=3 * LONGEST_TYPED))
def test_a_typed_text_holds_no_key(text: str) -> None:
    calls = text_calls(text)
    assert _held(calls) == set()
    assert bool(calls) == bool(text)


@pytest.mark.parametrize("modifier", ["Control", "Alt", "Meta", "Shift"])
@pytest.mark.parametrize("key", BAD)
def test_an_unknown_key_presses_no_modifier(modifier: str, key: str) -> None:
    assert chord_calls(f"{modifier}+{key}") is None


async def _type_right(session: BrowserSession, seed: int) -> float | None:
    """Play an episode as it is meant, and return its raw reward."""
    observation = await session.reset(TASK, seed)
    await session.evaluate("document.getElementById('tt').focus()")
    await session.step(TypeText(observation.goal.split('"')[1]))
    await session.evaluate("document.getElementById('subbtn').focus()")
    return (await session.step(Press("Enter"))).raw_reward


@pytest.mark.browser
def test_after_any_chord_and_any_cancellation_the_next_episode_types_rightly() -> None:
    generator = random.Random(11)

    async def disturb(session: BrowserSession, seed: int) -> None:
        await session.reset(TASK, seed)
        await session.evaluate("document.getElementById('tt').focus()")
        for _ in range(4):
            chord = "+".join(generator.choices(NAMES + BAD, k=generator.randint(1, 3)))
            await session.step(generator.choice([Press(chord or "a"), TypeText("aB" * 150)]))

    async def main() -> list[float | None]:
        rewards: list[float | None] = []
        async with BrowserPool(BrowserConfig(num_slots=1)) as pool, await pool.session() as session:
            for seed in range(16):
                with suppress(TimeoutError):
                    async with asyncio.timeout(generator.uniform(0.0, 0.2) if seed % 2 else None):
                        await disturb(session, seed)
                rewards.append(await _type_right(session, 100 + seed))
        return rewards

    assert asyncio.run(main()) == [1.0] * 16


@pytest.mark.browser
def test_text_arrives_as_it_is_whatever_its_length_and_script() -> None:
    texts = ["héllo, wörld! 日本語 😀 ~`|\\\"'", "a" * LONGEST_TYPED, "Ab1é " * 800]

    async def main() -> list[object]:
        async with BrowserPool(BrowserConfig(num_slots=1)) as pool, await pool.session() as session:
            typed: list[object] = []
            for text in texts:
                await session.reset(TASK, 0)
                await session.evaluate("document.getElementById('tt').focus()")
                await session.step(TypeText(text))
                typed.append(await session.evaluate("document.getElementById('tt').value"))
        return typed

    assert asyncio.run(main()) == texts
