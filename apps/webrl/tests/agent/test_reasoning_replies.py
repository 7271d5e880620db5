"""Replies with thought, memory and action as models write them: one reading each, or the reason."""

# ruff: noqa: RUF001
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webrl.actions import ActionMode, InvalidAction, format_action
from webrl.agent import read_direct, read_reasoning, read_tool_call

FORM = "<thought>{}</thought>\n<memory>{}</memory>\n<action>{}</action>"
CLICK = "left_click(500, 250)"

IN_FORM = [
    ("<thought>Open it.</thought>\n<action>left_click(500, 250)</action>", CLICK),
    (FORM.format("Go on.", "Price: 12", "wait()"), "wait()"),
    (FORM.format("输入城市", "城市：北京", 'type("北京")'), 'type("\\u5317\\u4eac")'),
    (FORM.format("ok \U0001f44d", "", 'type("\U0001f600")'), 'type("\\ud83d\\ude00")'),
    (FORM.format("a < b > c", "x <y>", "go_back()"), "go_back()"),
    (FORM.format("Action: wait() would be wrong", "-", CLICK), CLICK),
    (FORM.format("I see left_click(1, 2) in the text", "-", CLICK), CLICK),
    (FORM.format("why", "-", 'press("ctrl+a")'), 'press("Control+a")'),
    (FORM.format("why", "-", 'press("Esc")'), 'press("Escape")'),
    (FORM.format("why", "-", 'press("Return")'), 'press("Enter")'),
    (FORM.format("why", "-", 'press("Cmd+a")'), 'press("Control+a")'),
    (FORM.format("why", "-", 'press("PageDown")'), 'press("PageDown")'),
    (FORM.format("why", "-", 'press("page_up")'), 'press("PageUp")'),
    (FORM.format("why", "-", 'answer("42 (or so)")'), 'answer("42 (or so)")'),
    (FORM.format("why", "-", 'answer("")'), 'answer("")'),
    (FORM.format("why", "-", "left_click([500, 250])"), CLICK),
    (FORM.format("why", "-", "drag((1, 2), (3, 4))"), "drag(1, 2, 3, 4)"),
    (FORM.format("why", "-", "scroll(500, 500, 0, -300)"), "scroll(500, 500, 0, -300)"),
    ("<think>\nlong\n</think>\n\n" + FORM.format("x", "y", CLICK), CLICK),
]

LOOSE = [
    ("<THOUGHT>x</THOUGHT><ACTION>wait()</ACTION>", "wait()"),
    # Tags that are not closed, doubled or misspelt.
    ("<thought>Open it.\n<action>left_click(500, 250)", CLICK),
    ("<thought>Open it.</thought><action>left_click(500, 250)", CLICK),
    ("<action>left_click(500, 250)</action>", CLICK),
    ("<thinking>hm</thinking><action>wait()</action>", "wait()"),
    ("< thought >hm</ thought >< action >wait()</ action >", "wait()"),
    ("<action>wait()</action></action>", "wait()"),
    ("<action>wait()</action><action>wait()</action>", "wait()"),
    ("<reasoning>r</reasoning><notes>n</notes><action>wait()</action>", "wait()"),
    ("<memory>a</memory><memory>b</memory><action>wait()</action>", "wait()"),
    ("<action>go_back()</action><thought>since it is wrong</thought>", "go_back()"),
    # Prose before and after.
    ("Sure!\n<thought>x</thought><action>wait()</action>\nDone.", "wait()"),
    ("<thought>x</thought><action>I click it: left_click(500, 250)</action>", CLICK),
    ("<thought>x</thought><action>left_click(500, 250).</action>", CLICK),
    ("<thought>x</thought><action>left_click(500, 250);</action>", CLICK),
    ("<thought>x</thought><action>left_click(500, 250)  # the button</action>", CLICK),
    ("<action>\U0001f449 left_click(500, 250)</action>", CLICK),
    ("<thought>Let me wait.</thought>\nleft_click(500, 250)", CLICK),
    ("I open the menu now. left_click(500, 250)", CLICK),
    ("The next step is `left_click(500, 250)`.", CLICK),
    ("left_click(500, 250)\n\nThis opens the menu.", CLICK),
    ("left_click(500, 250)", CLICK),
    ("left_click(500, 250) and again left_click(500, 250)", CLICK),
    # Fences and Markdown.
    ("<action>```\nleft_click(500, 250)\n```</action>", CLICK),
    ("<action>```python\nleft_click(500, 250)\n```</action>", CLICK),
    ("<action>`left_click(500, 250)`</action>", CLICK),
    ("<action>**left_click(500, 250)**</action>", CLICK),
    ("<action>```left_click(500, 250)```</action>", CLICK),
    ("<action>```\nleft_click(500, 250)</action>", CLICK),
    ("Thought: x\nAction:\n```\nwait()\n```", "wait()"),
    # Headings in place of tags.
    ("Thought: open it\nMemory: none\nAction: left_click(500, 250)", CLICK),
    ("**Thought:** open it\n**Action:** left_click(500, 250)", CLICK),
    ("**Thought**: open it\n**Action**: left_click(500, 250)", CLICK),
    ("## Thought: open it\n## Action: left_click(500, 250)", CLICK),
    ("- Thought: open it\n- Action: left_click(500, 250)", CLICK),
    ("THOUGHT: open it\nACTION: left_click(500, 250)", CLICK),
    ("Memory: []\nProgress: 1/2\nIntention: go\nAction: wait()", "wait()"),
    ("Reasoning: line one\nline two\nAction: wait()", "wait()"),
    ("思考：点击按钮\n动作：left_click(500, 250)", CLICK),
    ("思考: 点击按钮\n记忆: 无\n行动: left_click(500, 250)", CLICK),
    ("分析：需要等待\n操作：wait()", "wait()"),
    # Chinese and curled punctuation.
    ("<action>left_click（500，250）</action>", CLICK),
    ("<action>left_click(500，250)。</action>", CLICK),
    ("<action>type（“北京，朝阳”）</action>", 'type("\\u5317\\u4eac\\uff0c\\u671d\\u9633")'),
    ('<action>type（"你好，世界"）</action>', 'type("\\u4f60\\u597d\\uff0c\\u4e16\\u754c")'),
    ("<action>type(“hello”)</action>", 'type("hello")'),
    ("<action>press(“Enter”)</action>", 'press("Enter")'),
    # As Python writes calls.
    ("<action>left_click(x=500, y=250)</action>", CLICK),
    ("<action>left_click(y=250, x=500)</action>", CLICK),
    ("<action>left_click(coordinate=[500, 250])</action>", CLICK),
    ("<action>left_click(coordinate=(500, 250))</action>", CLICK),
    ('<action>left_click(coordinate="500, 250")</action>', CLICK),
    ("<action>left_click(point=[500, 250])</action>", CLICK),
    ("<action>left_click(500.0, 250.0)</action>", "!whole numbers"),
    ("<action>type('hello')</action>", 'type("hello")'),
    ("<action>type('it\\'s')</action>", 'type("it\'s")'),
    ("<action>type(text='hello')</action>", 'type("hello")'),
    ('<action>type(text="hello")</action>', 'type("hello")'),
    ("<action>type(content='hello')</action>", 'type("hello")'),
    ("<action>press(key='Enter')</action>", 'press("Enter")'),
    ("<action>press(keys=['ctrl', 'c'])</action>", 'press("Control+c")'),
    ("<action>navigate(url='https://example.org/')</action>", 'navigate("https://example.org/")'),
    ("<action>answer(text='yes')</action>", 'answer("yes")'),
    ("<action>scroll(direction='down')</action>", "scroll(500, 500, 0, 500)"),
    ("<action>scroll(x=1, y=2, dx=0, dy=300)</action>", "scroll(1, 2, 0, 300)"),
    ("<action>click(500, 250)</action>", CLICK),
    ("<action>wait(time=2)</action>", "wait()"),
    # A tool's call in place of the grammar.
    (
        '<action>{"name": "left_click", "arguments": {"coordinate": [500, 250]}}</action>',
        CLICK,
    ),
    (
        '<thought>x</thought><tool_call>\n{"name": "computer_use", "arguments": '
        '{"action": "left_click", "coordinate": [500, 250]}}\n</tool_call>',
        CLICK,
    ),
    ('<action>{"action": "left_click", "coordinate": [500, 250]}</action>', CLICK),
    ('Action: {"action": "type", "text": "a"}', 'type("a")'),
    ('<action>```json\n{"action": "wait"}\n```</action>', "wait()"),
]

REJECTED = [
    ("", "must hold an action, got none"),
    ("   \n", "must hold an action, got none"),
    ("I do not know.", "one action such as left_click(500, 250)"),
    ("<thought>only a thought</thought>", "must hold an action, got none"),
    ("<thought>cut in the mid", "must hold an action, got none"),
    ("<memory>a</memory>", "must hold an action, got none"),
    ("<thought>x</thought><action></action>", "must hold an action, got none"),
    ("<thought>x</thought><action>", "must hold an action, got none"),
    ("<action>left_click(500, 250)</action><action>wait()</action>", "got several"),
    ("<action>left_click(500, 250) wait()</action>", "got several"),
    ('<action>left_click(500, 250)\ntype("a")</action>', "got several"),
    ("Action: wait()\nAction: go_back()", "got several"),
    ("First left_click(500, 250), then wait().", "got several"),
    ("<action>left_click(500, 25", "left_click must end with a closing bracket"),
    ('<action>type("hello', "type must end with a closing bracket"),
    ('<action>type("hello</action>', "type must end with a closing bracket"),
    ("<action>left_click(500)</action>", "takes 2 whole numbers, got 1"),
    ("<action>left_click(500, 250, 3)</action>", "takes 2 whole numbers, got 3"),
    ("<action>left_click(1, 2, 3, 4)</action>", "takes 2 whole numbers, got 4"),
    ("<action>left_click(500, 1250)</action>", "0 to 1000, got 1250"),
    ("<action>left_click(x=500, y=-1)</action>", "0 to 1000, got -1"),
    ("<action>left_click(x=500)</action>", "takes 2 whole numbers, got 1"),
    ("<action>left_click(x=500, y=250, z=1)</action>", "takes no argument 'z'"),
    ("<action>left_click(500, y=250)</action>", "whole numbers or quoted strings"),
    ("<action>left_click(button)</action>", "whole numbers or quoted strings"),
    ("<action>left_click('the button')</action>", "takes 2 whole numbers"),
    ("<action>type(hello)</action>", "whole numbers or quoted strings"),
    ('<action>type("")</action>', "must not be empty"),
    ('<action>press("Hyper+x")</action>', "key must be a key or a chord"),
    ('<action>press("你")</action>', "key must be a key or a chord"),
    ("<action>fly(1, 2)</action>", "must be one of left_click"),
    ("<action>click the button</action>", "one action such as"),
    ("<action>scroll(direction='inwards')</action>", "up, down, left or right, got 'inwards'"),
    ("<action>None</action>", "one action such as"),
    ("<think>never ends left_click(500, 250)", "ended within its thoughts"),
    ('<action>{"name": "left_click", "arguments": {"coordinate": [500, 2', "JSON object"),
    ('<action>{"name": "left_click"}</action>', "must have the form"),
    ("<action>[]</action>", "one action such as"),
    ("动作：点击按钮", "one action such as"),
    ("<action>\U0001f600</action>", "one action such as"),
]


def shown(reply: str, mode: ActionMode = "coordinates") -> str:
    """Return the action of a reply as text, or `!` and why there is none."""
    action = read_reasoning(reply, mode).action
    if isinstance(action, InvalidAction):
        return f"!{action.reason}"
    return format_action(action)


@pytest.mark.parametrize(("reply", "action"), IN_FORM)
def test_a_reply_as_the_prompt_asks_for_is_in_form(reply: str, action: str) -> None:
    assert shown(reply) == action
    assert read_reasoning(reply).is_in_form


@pytest.mark.parametrize(("reply", "action"), LOOSE)
def test_a_reply_with_one_meaning_is_read_and_not_in_form(reply: str, action: str) -> None:
    if action.startswith("!"):
        assert action[1:] in shown(reply)
    else:
        assert shown(reply) == action
    assert not read_reasoning(reply).is_in_form


@pytest.mark.parametrize(("reply", "reason"), REJECTED)
def test_a_reply_without_one_meaning_says_why(reply: str, reason: str) -> None:
    assert shown(reply).startswith("!")
    assert reason in shown(reply)


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("<thought>x</thought><action>left_click(7)</action>", "left_click(7)"),
        ("<action>left_click(mark=7)</action>", "left_click(7)"),
        ("<action>left_click(element=7)</action>", "left_click(7)"),
        ("<action>left_click([7])</action>", "left_click(7)"),
        ("<action>scroll(direction='up')</action>", "scroll(0, 0, -500)"),
        ("<action>scroll(mark=3, direction='down')</action>", "scroll(3, 0, 500)"),
        ("<action>click（7）</action>", "left_click(7)"),
        ('<action>{"action": "left_click", "mark": "7"}</action>', "left_click(7)"),
        ("动作：left_click(7)。", "left_click(7)"),
    ],
)
def test_marks_are_read_alike(reply: str, action: str) -> None:
    assert shown(reply, "set_of_marks") == action


def test_thought_and_memory_are_kept_and_a_thinking_block_is_not() -> None:
    reply = "<think>secret</think>" + FORM.format("Open\nit.", "a: 1\nb: 2", CLICK)
    decision = read_reasoning(reply)
    assert (decision.thought, decision.memory) == ("Open\nit.", "a: 1\nb: 2")
    assert read_reasoning("<action>wait()</action>").memory is None
    assert read_reasoning(FORM.format("x", "", CLICK)).memory == ""


def test_thought_and_memory_of_a_reply_without_an_action_are_kept() -> None:
    decision = read_reasoning(FORM.format("Hm.", "a: 1", "left_click(1)"))
    assert not decision.is_valid
    assert (decision.thought, decision.memory) == ("Hm.", "a: 1")


def test_a_prompt_that_opened_the_thinking_needs_its_end() -> None:
    assert not read_reasoning("left_click(500, 250)", is_thinking=True).is_valid
    assert shown("hm</think>left_click(500, 250)") == CLICK


_PIECES = st.sampled_from(
    [
        "<thought>",
        "</thought>",
        "<action>",
        "</action>",
        "<think>",
        "</think>",
        "left_click(",
        "1",
        ",",
        ")",
        "type(",
        '"',
        "'",
        "Action:",
        "```",
        "{",
        "}",
        "（",
        "”",
        "x=",
        "\\",
        "[",
        "]",
    ]
)


@given(st.lists(_PIECES, max_size=14).map("".join) | st.text())
def test_the_reader_takes_any_text(reply: str) -> None:
    assert shown(reply)


@pytest.mark.parametrize(
    "piece",
    [
        "<",
        "<_",
        "<action>",
        "</thought><memory></memory><action>",
        "Action:_",
        "-_",
        "**",
        "```",
        "left_click(",
        "wait()_",
        "[",
        '"',
        "\\",
        "{",
        "1_",
        "<parameter=x>",
        "<a>",
        "“",
        "<tool_call>{",
    ],
)
def test_no_repetition_makes_a_reader_go_over_a_long_answer_again_and_again(piece: str) -> None:
    # A reader that does takes minutes here.
    for start in ("", "<thought>", "<action>left_click(", "<function=a>", '{"action": "'):
        reply = f"{start}{piece.replace('_', chr(10)) * 8000}"
        assert read_reasoning(reply).action
        assert read_tool_call(reply).action
        assert read_direct(reply).action


def test_an_escape_that_python_does_not_know_is_no_warning() -> None:
    assert shown(r"<action>type('\d')</action>") == 'type("\\\\d")'
