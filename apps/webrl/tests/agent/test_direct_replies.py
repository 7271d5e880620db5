"""Replies that are to be one action and nothing else, as models write them."""

from __future__ import annotations

import pytest
from webrl.actions import InvalidAction, format_action
from webrl.agent import read_direct

CLICK = "left_click(500, 250)"


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        (CLICK, CLICK),
        (f"  {CLICK}\n", CLICK),
        (f"```\n{CLICK}\n```", CLICK),
        (f"Let me see.\nAction: {CLICK}", CLICK),
        (f"<think>\nhm\n</think>\n{CLICK}", CLICK),
        ("left_click((500, 250))", CLICK),
        ('<tool_call>{"name": "left_click", "arguments": {"coordinate": "500, 250"}}', CLICK),
        ('<tool_call>{"name": "left_click", "arguments": {"coordinate": [500, 250]}', CLICK),
        ('type("你好 \U0001f600")', 'type("\\u4f60\\u597d \\ud83d\\ude00")'),
        ('press("Ctrl+a")', 'press("Control+a")'),
        ('press("esc")', 'press("Escape")'),
        ("", "!one action such as"),
        ("\U0001f600", "!one action such as"),
        (f"{CLICK}\nwait()", "!whole numbers or quoted strings"),
        (f"{CLICK} is best", "!one action such as"),
        ("left_click(500, 25", "!one action such as"),
        ('type("hel', "!one action such as"),
        ('{"name": "left_click", "arguments": {"coordinate": [500, 2', "!JSON object"),
        ("<tool_call>{}</tool_call><tool_call>{}</tool_call>", "!got several"),
        ("点击按钮", "!one action such as"),
    ],
)
def test_a_reply_has_one_reading_or_the_reason(reply: str, action: str) -> None:
    read = read_direct(reply).action
    if isinstance(read, InvalidAction):
        assert action.startswith("!")
        assert action[1:] in read.reason
    else:
        assert format_action(read) == action
