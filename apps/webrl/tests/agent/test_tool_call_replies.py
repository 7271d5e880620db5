"""Replies with calls of tools as models write them: one reading each, or the reason."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webrl.actions import ActionMode, InvalidAction, format_action
from webrl.agent import read_tool_call

CLICK = "left_click(500, 250)"
OPEN, CLOSE = "<tool_call>\n", "\n</tool_call>"
BODY = '{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [500, 250]}}'


def call(name: str = "computer_use", **arguments: object) -> str:
    """Return a call in the form of the chat template."""
    return f"{OPEN}{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}{CLOSE}"


IN_FORM = [
    (call(action="left_click", coordinate=[500, 250]), CLICK),
    (call(action="double_click", coordinate=[500, 250]), "double_click(500, 250)"),
    (call(action="mouse_move", coordinate=[500, 250]), "hover(500, 250)"),
    (
        call(action="left_click_drag", start_coordinate=[1, 2], coordinate=[3, 4]),
        "drag(1, 2, 3, 4)",
    ),
    (call(action="type", text="hello"), 'type("hello")'),
    (call(action="type", text="北京 \U0001f600"), 'type("\\u5317\\u4eac \\ud83d\\ude00")'),
    (call(action="type", text='say "</tool_call'), 'type("say \\"</tool_call")'),
    (call(action="key", keys=["enter"]), 'press("Enter")'),
    (call(action="key", keys=["ctrl", "a"]), 'press("Control+a")'),
    (call(action="key", keys=["ctrl+a"]), 'press("Control+a")'),
    (call(action="key", keys="ctrl+a"), 'press("Control+a")'),
    (call(action="key", text="Return"), 'press("Enter")'),
    (call(action="key", keys=["esc"]), 'press("Escape")'),
    (call(action="key", keys=["pagedown"]), 'press("PageDown")'),
    (call(action="key", keys=["cmd", "a"]), 'press("Control+a")'),
    (call(action="key", keys=["shift", "tab"]), 'press("Shift+Tab")'),
    (call(action="scroll", pixels=-300), "scroll(500, 500, 0, 300)"),
    (call(action="scroll", coordinate=[10, 20], pixels=300), "scroll(10, 20, 0, -300)"),
    (call(action="scroll", pixels="-300"), "scroll(500, 500, 0, 300)"),
    (call(action="scroll", pixels=-99999), "scroll(500, 500, 0, 1000)"),
    (call(action="hscroll", pixels=200), "scroll(500, 500, 200, 0)"),
    (call(action="scroll", direction="down"), "scroll(500, 500, 0, 500)"),
    (
        call(action="scroll", scroll_direction="up", coordinate=[1, 2]),
        "scroll(1, 2, 0, -500)",
    ),
    (call(action="wait", time=5), "wait()"),
    (call(action="wait"), "wait()"),
    (call(action="terminate", status="success"), 'answer("")'),
    (call(action="answer", text="42"), 'answer("42")'),
    (call("browser_use", action="go_back"), "go_back()"),
    (
        call("browser_use", action="navigate", url="https://a.example/"),
        'navigate("https://a.example/")',
    ),
    (
        call("browser_use", action="visit_url", url="https://a.example/"),
        'navigate("https://a.example/")',
    ),
    (call("computer_use", action="history_back"), "go_back()"),
    (call("left_click", coordinate=[500, 250]), CLICK),
    (call("left_click", x=500, y=250), CLICK),
    (call("click", point=[500, 250]), CLICK),
    (call("type", text="a\nb"), 'type("a\\nb")'),
    (call("press", key="Enter"), 'press("Enter")'),
    (call("answer", answer="yes"), 'answer("yes")'),
    # Coordinates of every kind.
    (call(action="left_click", coordinate=["500", "250"]), CLICK),
    (call(action="left_click", coordinate=[500.0, 250.0]), CLICK),
    (call(action="left_click", coordinate="500, 250"), CLICK),
    (call(action="left_click", coordinate="(500, 250)"), CLICK),
    (call(action="left_click", coordinate="[500, 250]"), CLICK),
    (call(action="left_click", coordinate="500 250"), CLICK),
    (call(action="left_click", coordinate="<point>500 250</point>"), CLICK),
    (call(action="left_click", coordinate=[[500, 250]]), CLICK),
    (call(action="left_click", coordinate=["500, 250"]), CLICK),
    (call(action="left_click", coordinate={"x": 500, "y": 250}), CLICK),
    (call(action="left_click", coordinate={"y": 250, "x": "500"}), CLICK),
    (call(action="left_click", coordinates=[500, 250]), CLICK),
    (call(action="left_click", x="500", y="250"), CLICK),
    # Brackets that the end lacks, or has too many of.
    (f"{OPEN}{BODY[:-1]}{CLOSE}", CLICK),
    (f"{OPEN}{BODY[:-2]}{CLOSE}", CLICK),
    (f"{OPEN}{BODY}}}{CLOSE}", CLICK),
    (f"{OPEN}{BODY}}}}}{CLOSE}", CLICK),
    (f"{OPEN}{BODY.replace('250]', '250],')}{CLOSE}", CLICK),
    # Quotes as Python has them, arguments as text, other wrappings.
    (f"{OPEN}{BODY.replace(chr(34), chr(39))}{CLOSE}", CLICK),
    (
        f'{OPEN}{{"name": "computer_use", "arguments": "{{\\"action\\": \\"wait\\"}}"}}{CLOSE}',
        "wait()",
    ),
    (f'{OPEN}{{"name": "wait", "parameters": {{}}}}{CLOSE}', "wait()"),
    (
        f'{OPEN}{{"type": "function", "function": {BODY}}}{CLOSE}',
        CLICK,
    ),
    (f"{OPEN}[{BODY}]{CLOSE}", CLICK),
    (f"{OPEN}```json\n{BODY}\n```{CLOSE}", CLICK),
    (f'{OPEN}{{"action": "left_click", "coordinate": [500, 250]}}{CLOSE}', CLICK),
    (
        f"{OPEN}<function=computer_use>\n<parameter=action>\nleft_click\n</parameter>\n"
        f"<parameter=coordinate>\n[500, 250]\n</parameter>\n</function>{CLOSE}",
        CLICK,
    ),
    (
        f"{OPEN}<function=computer_use>\n<parameter=action>\ntype\n</parameter>\n"
        f"<parameter=text>\n12 apples\n</parameter>\n</function>{CLOSE}",
        'type("12 apples")',
    ),
    # Prose before it.
    ("Action: Click the button.\n" + call(action="left_click", coordinate=[500, 250]), CLICK),
    ("点击按钮。\n" + call(action="left_click", coordinate=[500, 250]), CLICK),
    ("<think>\nlong {\n</think>\n\n" + call(action="wait"), "wait()"),
    ("I could left_click(1, 2).\n" + call(action="wait"), "wait()"),
]

LOOSE = [
    (f"{OPEN}{BODY}", CLICK),
    (f"{OPEN}{BODY[:-1]}", CLICK),
    (f"{OPEN}{BODY}{CLOSE}\nThis opens the menu.", CLICK),
    (f"{BODY}", CLICK),
    (f"{BODY}{CLOSE}", CLICK),
    (f"{BODY}\n\nDone.", CLICK),
    (f"I click.\n{BODY}", CLICK),
    (f"```json\n{BODY}\n```", CLICK),
    (f"I click.\n```json\n{BODY}\n```", CLICK),
    (f"```\n{BODY}\n```\nDone.", CLICK),
    ('{"action": "left_click", "coordinate": [500, 250]}', CLICK),
    ('Action: {"action": "type", "text": "a"}', 'type("a")'),
    ("left_click(500, 250)", CLICK),
    ("Action: left_click(500, 250)", CLICK),
    ("<action>left_click(500, 250)</action>", CLICK),
    ("<function=wait>\n</function>", "wait()"),
]

REJECTED = [
    ("", "one action such as"),
    ("The page is loading.", "one action such as"),
    ("\U0001f600", "one action such as"),
    ("<think>never ends", "ended within its thoughts"),
    (f"{OPEN}{CLOSE}", "JSON object"),
    (f"{OPEN}{BODY}{CLOSE}\n{OPEN}{BODY}{CLOSE}", "one tool call, got several"),
    (f"{OPEN}{BODY}{CLOSE}\n{call(action='wait')}", "one tool call, got several"),
    (f"{OPEN}{BODY}\n{BODY}{CLOSE}", "JSON object"),
    (f"{OPEN}[{BODY}, {BODY}]{CLOSE}", "got several"),
    (f"{OPEN}{BODY[:-4]}", "JSON object"),
    (f"{OPEN}{BODY[:60]}", "JSON object"),
    (
        f'{OPEN}{{"name": "computer_use", "arguments": {{"action": "type", "text": "hel',
        "JSON object",
    ),
    (f'{OPEN}{{"name": "computer_use"', "must have the form"),
    (f'{OPEN}{{"name": "computer_use", "argu', "JSON object"),
    (f"{OPEN}wait{CLOSE}", "JSON object"),
    (f"{OPEN}null{CLOSE}", "JSON object"),
    (f'{OPEN}{{"name": "left_click"}}{CLOSE}', "must have the form"),
    (f'{OPEN}{{"name": "left_click", "arguments": 3}}{CLOSE}', "must have the form"),
    (call(action="left_click"), "takes 2 whole numbers, got 0"),
    (call(action="left_click", coordinate=[500]), "takes 2 whole numbers, got 1"),
    (call(action="left_click", coordinate=[1, 2, 3, 4]), "takes 2 whole numbers, got 4"),
    (call(action="left_click", coordinate=[500, 1250]), "0 to 1000, got 1250"),
    (call(action="left_click", coordinate="the button"), "takes 2 whole numbers"),
    (call(action="left_click", coordinate=[0.5, 0.25]), "whole numbers or strings"),
    (call(action="left_click", coordinate=[500, True]), "whole numbers or strings"),
    (call(action="left_click", coordinate=None), "whole numbers or strings"),
    (call(action="left_click", coordinate={"left": 1}), "list of whole numbers"),
    (call(action="left_click", coordinate=[500, 250], button="right"), "no argument 'button'"),
    (call(action="left_click_drag", coordinate=[3, 4]), "needs start_coordinate"),
    (call(action="right_click", coordinate=[1, 2]), "must be one of left_click"),
    (call(action="triple_click", coordinate=[1, 2]), "must be one of left_click"),
    (call("python", code="1"), "must be one of left_click"),
    (call(action="type"), "takes one quoted string"),
    (call(action="type", text=""), "must not be empty"),
    (call(action="type", text="x" * 4001), "at most 4000 characters"),
    (call(action="key", keys=["hyper", "x"]), "key must be a key or a chord"),
    (call(action="key", keys=[]), "must not be empty"),
    (call(action="scroll"), "takes 4 whole numbers, got 0"),
    (call(action="scroll", direction="inwards"), "got 'inwards'"),
    (call(action="navigate"), "takes one quoted string"),
    (call(action="navigate", url=["https://a.example/", 1]), "takes one quoted string"),
]


def shown(reply: str, mode: ActionMode = "coordinates") -> str:
    """Return the action of a reply as text, or `!` and why there is none."""
    action = read_tool_call(reply, mode).action
    if isinstance(action, InvalidAction):
        return f"!{action.reason}"
    return format_action(action)


@pytest.mark.parametrize(("reply", "action"), IN_FORM)
def test_a_call_between_its_tags_is_read(reply: str, action: str) -> None:
    assert shown(reply) == action
    assert read_tool_call(reply).is_in_form


@pytest.mark.parametrize(("reply", "action"), LOOSE)
def test_a_call_without_its_tags_is_read_and_not_in_form(reply: str, action: str) -> None:
    assert shown(reply) == action
    assert not read_tool_call(reply).is_in_form


@pytest.mark.parametrize(("reply", "reason"), REJECTED)
def test_a_reply_without_one_meaning_says_why(reply: str, reason: str) -> None:
    assert shown(reply).startswith("!")
    assert reason in shown(reply)


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        (call(action="left_click", mark=7), "left_click(7)"),
        (call(action="left_click", mark="7"), "left_click(7)"),
        (call(action="left_click", element_id=7), "left_click(7)"),
        (call("left_click", index=7), "left_click(7)"),
        (call(action="scroll", pixels=-300), "scroll(0, 0, 300)"),
        (call(action="scroll", mark=2, pixels=-300), "scroll(2, 0, 300)"),
        (call(action="left_click_drag", mark=1, to_mark=2), "drag(1, 2)"),
        (
            call(action="left_click", coordinate=[1, 2]),
            "!left_click takes 1 whole numbers, got 2 arguments",
        ),
    ],
)
def test_marks_are_read_alike(reply: str, action: str) -> None:
    assert shown(reply, "set_of_marks") == action


def test_what_stands_before_the_call_is_the_thought() -> None:
    wait = call(action="wait")
    assert read_tool_call(f"Action: Wait for it.\n{wait}").thought == "Wait for it."
    assert read_tool_call(f"<think>secret</think>\nWait.\n{wait}").thought == "Wait."
    assert read_tool_call(f"I wait.\n```json\n{BODY}\n```").thought == "I wait."
    assert read_tool_call(f"Hm.\n{OPEN}oh{CLOSE}").thought == "Hm."


_PIECES = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "{",
        "}",
        "[",
        "]",
        '"',
        "\\",
        ",",
        ":",
        '"name"',
        '"arguments"',
        '"action"',
        '"wait"',
        "1",
        "'",
        "<function=wait>",
        "<parameter=x>",
        "</parameter>",
    ]
)


@given(st.lists(_PIECES, max_size=16).map("".join) | st.text())
def test_the_reader_takes_any_text(reply: str) -> None:
    assert shown(reply)
