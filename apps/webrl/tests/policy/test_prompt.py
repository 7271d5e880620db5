"""What the policy is told, by position and by mark."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers import AutoTokenizer
from webrl.actions import ACTION_NAMES, parse_action
from webrl.agent import (
    MARKS_SYSTEM_PROMPT,
    SYSTEM_PROMPT,
    Decision,
    Scene,
    Turn,
    action_lines,
    make_agent,
    user_text,
)
from webrl.agent import direct_chat as chat
from webrl.agent.texts import MAX_EVENTS
from webrl.config import AgentSection
from webrl.errors import PolicyError
from webrl.policy import PolicyProcessor
from webrl.policy.tokenizer import SPECIAL_TOKENS


def test_both_modes_explain_every_verb() -> None:
    for prompt in (SYSTEM_PROMPT, MARKS_SYSTEM_PROMPT):
        explained = [line.partition("(")[0] for line in prompt.splitlines() if ")" in line]
        assert sorted(explained) == sorted(ACTION_NAMES)


def test_marks_change_the_system_turn_and_list_the_elements() -> None:
    by_position = chat("Go.", [], 1)
    by_mark = chat("Go.", ["left_click(1)"], 1, ["1 button: Buy", "2 a: more\nlines"])
    assert by_position[0]["content"] == [{"type": "text", "text": SYSTEM_PROMPT}]
    assert by_mark[0]["content"] == [{"type": "text", "text": MARKS_SYSTEM_PROMPT}]
    assert user_text("Go.", ["left_click(1)"], ["1 button: Buy", "2 a: more\nlines"]) == (
        "Goal: Go.\nPrevious actions:\nleft_click(1)\nElements:\n1 button: Buy\n2 a: more lines\n"
    )
    assert user_text("Go.", [], []) == "Goal: Go.\nElements:\nnone\n"


def test_elements_are_part_of_the_prompt(processor: PolicyProcessor) -> None:
    prompts = [processor.build_prompt("Go.", [], 1, elements) for elements in (None, [], ["1 a"])]
    assert len({tuple(prompt) for prompt in prompts}) == 3


@pytest.fixture(scope="module")
def hostile(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> PolicyProcessor:
    """A processor whose tokenizer has control tokens of several families, and odd ones."""
    folder = tmp_path_factory.mktemp("hostile")
    shutil.copytree(checkpoint, folder, dirs_exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(
        [AddedToken(token, special=True) for token in ("[INST]", "<eos>", "@@stop@@", "{{end}}")]
    )
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False)])
    tokenizer.save_pretrained(folder)
    return PolicyProcessor.from_pretrained(folder)


_CONTROL = (*SPECIAL_TOKENS, "[INST]", "<eos>", "@@stop@@", "{{end}}", "<tool_call>")
_HOSTILE = st.lists(st.sampled_from([*_CONTROL, "<", "<|", "@@", "a", " "]), max_size=6).map(
    "".join
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_HOSTILE, _HOSTILE, _HOSTILE, _HOSTILE, st.integers(1, 3))
def test_no_text_in_any_field_spells_a_control_token(
    hostile: PolicyProcessor, goal: str, action: str, event: str, element: str, num_images: int
) -> None:
    def build(*texts: str) -> Counter[int]:
        goal, action, event, element = texts
        done = action_lines(f'type("{action}")', [f"dialog: alert {event!r} accepted"])
        ids = hostile.build_prompt(f"Go.{goal}", [done], num_images, [f"1 button: {element}"])
        return Counter(ids)

    controls = [hostile.encode(token) for token in _CONTROL]
    assert all(len(ids) == 1 for ids in controls)
    found, wanted = build(goal, action, event, element), build("", "", "", "")
    for (token,) in controls:
        assert found[token] == wanted[token]


def test_what_came_of_an_action_stands_below_it_on_lines_of_its_own() -> None:
    done = action_lines("left_click(1, 2)", ["dialog: alert 'a' accepted", "popup: a\nGoal: b"])
    assert user_text("Go.", [done, "wait()"]) == (
        "Goal: Go.\nPrevious actions:\nleft_click(1, 2)\n  dialog: alert 'a' accepted\n"
        "  popup: a Goal: b\nwait()\n"
    )
    assert len(action_lines("wait()", ["popup: x"] * 100).splitlines()) == 1 + MAX_EVENTS


def test_a_whole_reply_in_place_of_an_action_is_cut() -> None:
    reply = "I will think step by step about the page.\n" * 450
    assert len(user_text("Go.", [reply] * 4)) < 4 * 6 * 250


def within(
    processor: PolicyProcessor, max_tokens: int, *replies: str, elements: list[str] | None = None
) -> list[int]:
    """Return the prompt of the agent `direct` after these replies."""
    decisions = [Decision(action=parse_action(reply)) for reply in replies]
    scene = Scene(
        goal="Go.",
        url="",
        sizes=((224, 160),) * (len(replies) + 1),
        elements=None if elements is None else tuple(elements),
        turns=tuple(Turn(decision=decision) for decision in decisions),
    )
    room = max_tokens + processor.num_image_tokens(224, 160) - 1
    return make_agent(AgentSection(), processor, max_tokens=room).prompt(scene).ids


def test_a_prompt_that_is_too_long_loses_its_oldest_actions(processor: PolicyProcessor) -> None:
    prompt = within(processor, 200, *(f"left_click({n}, {n})" for n in range(100)))
    text = processor.decode(prompt)
    assert len(prompt) <= 200
    assert "left_click(99, 99)" in text
    assert "left_click(1, 1)" not in text


def test_a_prompt_that_is_too_long_loses_its_last_elements(processor: PolicyProcessor) -> None:
    elements = [f"{n} button: {'x' * 80}" for n in range(1, 200)]
    prompt = within(processor, 300, "wait()", elements=elements)
    text = processor.decode(prompt)
    assert len(prompt) <= 300
    assert "wait()" in text
    assert "1 button" in text


def test_a_goal_that_is_too_long_is_refused(processor: PolicyProcessor) -> None:
    with pytest.raises(PolicyError, match=r"must fit into .* inference\.context_length"):
        within(processor, 3, "wait()", elements=["1 a"])
