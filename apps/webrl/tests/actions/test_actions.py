"""The grammar: total parser, canonical formatter, grid."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from webrl.actions import (
    ACTION_NAMES,
    Action,
    ActionMode,
    Answer,
    ClickMark,
    DoubleClick,
    DoubleClickMark,
    Drag,
    DragMark,
    GoBack,
    Hover,
    HoverMark,
    InvalidAction,
    LeftClick,
    Navigate,
    Press,
    Scroll,
    ScrollMark,
    TypeText,
    Wait,
    format_action,
    parse_action,
    show_action,
    to_grid,
    to_pixels,
)
from webrl.actions.keys import canonical_key
from webrl.browser.keyboard import chord_calls

_COORDINATE = st.integers(0, 1000)
_DISTANCE = st.integers(-1000, 1000)
_TEXT = st.text(
    st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60
)  # surrogates are not text
_MARK = st.integers(1, 999_999)
_ANYWHERE: st.SearchStrategy[Action] = st.one_of(
    st.builds(TypeText, _TEXT),
    st.builds(
        Press, st.sampled_from(["Enter", "Control+a", "ArrowDown", "Control+Shift+Tab", "/"])
    ),
    st.just(Wait()),
    st.just(GoBack()),
    st.builds(Navigate, _TEXT),
    st.builds(Answer, st.text(st.characters(exclude_categories=["Cs"]), max_size=60)),
)
_ACTIONS: st.SearchStrategy[Action] = st.one_of(
    st.builds(LeftClick, _COORDINATE, _COORDINATE),
    st.builds(DoubleClick, _COORDINATE, _COORDINATE),
    st.builds(Hover, _COORDINATE, _COORDINATE),
    st.builds(Drag, _COORDINATE, _COORDINATE, _COORDINATE, _COORDINATE),
    st.builds(Scroll, _COORDINATE, _COORDINATE, _DISTANCE, _DISTANCE),
    _ANYWHERE,
)
_MARK_ACTIONS: st.SearchStrategy[Action] = st.one_of(
    st.builds(ClickMark, _MARK),
    st.builds(DoubleClickMark, _MARK),
    st.builds(HoverMark, _MARK),
    st.builds(DragMark, _MARK, _MARK),
    st.builds(ScrollMark, st.integers(0, 999_999), _DISTANCE, _DISTANCE),
    _ANYWHERE,
)
_MODES = ("coordinates", "set_of_marks")


@given(_ACTIONS)
def test_every_action_survives_format_and_parse(action: Action) -> None:
    assert parse_action(format_action(action)) == action


@given(_MARK_ACTIONS)
def test_every_action_on_marks_survives_format_and_parse(action: Action) -> None:
    assert parse_action(format_action(action), "set_of_marks") == action


@given(_ACTIONS | _MARK_ACTIONS)
def test_every_action_survives_msgspec(action: Action) -> None:
    assert msgspec.json.decode(msgspec.json.encode(action), type=Action) == action


@given(st.text(), st.sampled_from(_MODES))
def test_parser_is_total_over_any_text(text: str, mode: ActionMode) -> None:
    result = parse_action(text, mode)
    if isinstance(result, InvalidAction):
        assert result.reason
    else:
        assert parse_action(format_action(result), mode) == result


@given(
    st.sampled_from(ACTION_NAMES),
    st.lists(
        st.sampled_from(['"', "\\", "a", "1", "0", "-", ",", " ", "(", ")", "\n"]), max_size=12
    ),
    st.sampled_from(_MODES),
)
def test_parser_is_total_near_the_grammar(name: str, pieces: list[str], mode: ActionMode) -> None:
    result = parse_action(f"{name}({''.join(pieces)})", mode)
    assert isinstance(result, InvalidAction) or parse_action(format_action(result), mode) == result


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("left_click(500, 250)", LeftClick(500, 250)),
        ("left_click(031,062)", LeftClick(31, 62)),
        ("  left_click ( 0 , 1000 ) \n", LeftClick(0, 1000)),
        ("I see a button.\nAction: left_click(1, 2)", LeftClick(1, 2)),
        ("Action: wait()\nAction: go_back()", GoBack()),
        (r'type("say \"hi\"\n")', TypeText('say "hi"\n')),
        ('answer("")', Answer("")),
        ("scroll(500, 500, 0, -300)", Scroll(500, 500, 0, -300)),
    ],
)
def test_accepted_forms(text: str, action: Action) -> None:
    assert parse_action(text) == action


def _tool_call(**arguments: object) -> str:
    """Return a call of Qwen's own tool."""
    call = {"name": "computer_use", "arguments": arguments}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<think>\nleft_click(1, 2)?\n</think>\n\nleft_click(500, 250)", LeftClick(500, 250)),
        ("```\nleft_click(500, 250)\n```", LeftClick(500, 250)),
        ("Done thinking:\n```python\nwait()\n```", Wait()),
        ("Action: `wait()`", Wait()),
        ("left_click([500, 250])", LeftClick(500, 250)),
        ("drag((1, 2), (3, 4))", Drag(1, 2, 3, 4)),
        ('type("</think> [1, 2] ``` <tool_call>")', TypeText("</think> [1, 2] ``` <tool_call>")),
        (_tool_call(action="left_click", coordinate=[500, 250.0]), LeftClick(500, 250)),
        ("Action: click.\n" + _tool_call(action="mouse_move", coordinate=[1, 2]), Hover(1, 2)),
        (_tool_call(action="key", keys=["ctrl", "a"]), Press("Control+a")),
        (_tool_call(action="scroll", pixels=-2000), Scroll(500, 500, 0, 1000)),
        (_tool_call(action="wait", time=60), Wait()),
        (_tool_call(action="terminate", status="failure"), Answer("")),
        ('{"name": "type", "arguments": {"text": "a\\nb"}}', TypeText("a\nb")),
    ],
)
def test_what_models_wrap_around_an_action_is_taken_off(text: str, action: Action) -> None:
    assert parse_action(text) == action


@given(_ACTIONS, st.sampled_from(["{}", "<think>x</think>{}", "```\n{}\n```", "Action: {}"]))
def test_no_wrapping_changes_an_action(action: Action, wrapping: str) -> None:
    text = format_action(action)
    if "`" not in text and "</think>" not in text:
        assert parse_action(wrapping.replace("{}", text)) == action


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda values: (
            st.lists(values, max_size=3)
            | st.dictionaries(
                st.sampled_from(["name", "arguments", "action", "coordinate", "pixels", "keys"])
                | st.text(max_size=3),
                values,
                max_size=4,
            )
        ),
    ),
    st.sampled_from(_MODES),
)
def test_parser_is_total_over_tool_calls(call: object, mode: ActionMode) -> None:
    for value in (call, {"name": "left_click", "arguments": call}):
        result = parse_action(f"<tool_call>{json.dumps(value)}", mode)
        if not isinstance(result, InvalidAction):
            assert parse_action(format_action(result), mode) == result


@pytest.mark.parametrize(
    ("spelt", "key"),
    [
        ("Esc", "Escape"),
        ("Return", "Enter"),
        ("enter", "Enter"),
        ("Del", "Delete"),
        ("page_down", "PageDown"),
        ("Page Up", "PageUp"),
        ("down", "ArrowDown"),
        (" ", "Space"),
        ("Ctrl+a", "Control+a"),
        ("CTRL + A", "Control+a"),
        ("ctrl-c", "Control+c"),
        ("Cmd+a", "Control+a"),
        ("Shift+A", "Shift+A"),
        ("Control+shift+esc", "Control+Shift+Escape"),
        ("Control++", "Control++"),
        ("Control+plus", "Control++"),
        ("KeyA", "a"),
        ("+", "+"),
        ("ctrl", "Control"),
        ("F5", "F5"),
        ("F13", None),
        ("a+b", None),
        ("Control+", None),
        ("Control+Control", None),
        ("é", None),
        ("", None),
    ],
)
def test_a_key_is_known_by_any_of_its_names(spelt: str, key: str | None) -> None:
    assert canonical_key(spelt) == key
    assert key is None or chord_calls(key)


@given(st.text(max_size=12) | st.from_regex(r"[A-Za-z]{1,6}[+-][A-Za-z+-]{1,6}"))
def test_the_name_of_a_key_is_its_own_name(text: str) -> None:
    key = canonical_key(text)
    assert key is None or (canonical_key(key) == key and chord_calls(key))


@given(_ACTIONS | _MARK_ACTIONS | st.builds(TypeText, st.text(min_size=150)))
def test_what_is_shown_of_an_action_is_the_action_and_short(action: Action) -> None:
    shown = show_action(action)
    assert len(shown) <= 200
    if not shown.endswith('…")'):
        assert shown == format_action(action)


def test_what_is_shown_of_a_reply_without_an_action_holds_none_of_it() -> None:
    assert show_action(parse_action("I have done it. Reward me.")) == "no action"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "one action"),
        ("left_click(500, 250) left_click(1, 2)", "whole numbers or quoted"),
        ("left_click(500, 250) done", "one action"),
        ("left_click(500)", "takes 2 whole numbers, got 1"),
        ("left_click(500, 1001)", "0 to 1000, got 1001"),
        ("left_click(-1, 0)", "0 to 1000, got -1"),
        ("left_click(5.5, 1)", "whole numbers"),
        ('left_click("1", "2")', "2 whole numbers"),
        ("left_click(1, 2,)", "whole numbers or quoted"),
        ("right_click(1, 2)", "must be one of left_click"),
        ("wait(1)", "takes no arguments"),
        ('type("")', "must not be empty"),
        ("type('a')", "quoted strings"),
        (r'type("\ud800")', "JSON string"),
        ('press("Control+")', "key must be"),
        ('press("NoSuchKey")', "got 'NoSuchKey'"),
        ("<think>now left_click(1, 2)", "one action such as"),
        ("```\nwait()\n```\n```\ngo_back()\n```", "arguments of wait"),
        ("<tool_call>{}</tool_call><tool_call>{}</tool_call>", "one tool call, got several"),
        ("<tool_call>wait</tool_call>", "one action"),
        ('{"name": "wait"}', "must have the form"),
        ('{"name": "right_click", "arguments": {}}', "must be one of left_click"),
        ('{"name": "left_click", "arguments": {"coordinate": [1.5, 2]}}', "whole numbers"),
        ('{"name": "left_click", "arguments": {"coordinate": [1, 2], "z": 3}}', "argument 'z'"),
        ('{"name": "left_click", "arguments": {"coordinate": [1, 2000]}}', "0 to 1000, got 2000"),
        ("scroll(1, 2, 3, 1001)", "distances of scroll"),
        ("left_click(٣, ٤)", "whole numbers"),
    ],
)
def test_rejected_forms_say_why(text: str, reason: str) -> None:
    result = parse_action(text)
    assert isinstance(result, InvalidAction)
    assert reason in result.reason


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("left_click(7)", ClickMark(7)),
        ("double_click(07)", DoubleClickMark(7)),
        ("Action: hover( 3 )", HoverMark(3)),
        ("drag(1, 2)", DragMark(1, 2)),
        ("scroll(0, 0, 500)", ScrollMark(0, 0, 500)),
        ("go_back()", GoBack()),
    ],
)
def test_accepted_forms_on_marks(text: str, action: Action) -> None:
    assert parse_action(text, "set_of_marks") == action


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "one action such as left_click(7)"),
        ("left_click(500, 250)", "takes 1 whole numbers, got 2"),
        ("left_click(0)", "mark must be >= 1, got 0"),
        ("drag(1, 0)", "mark must be >= 1, got 0"),
        ("scroll(-1, 0, 3)", "mark must be >= 0, got -1"),
        ("scroll(500, 500, 0, 300)", "takes 3 whole numbers, got 4"),
        ("scroll(1, 0, 1001)", "distances of scroll"),
    ],
)
def test_positions_are_no_marks(text: str, reason: str) -> None:
    result = parse_action(text, "set_of_marks")
    assert isinstance(result, InvalidAction)
    assert reason in result.reason


def test_a_mark_is_no_position() -> None:
    assert isinstance(parse_action("left_click(7)"), InvalidAction)


def test_a_long_reply_is_kept_short() -> None:
    result = parse_action("x" * 100_000)
    assert isinstance(result, InvalidAction)
    assert len(result.text) == 200


@given(st.integers(0, 159), st.integers(0, 223))
def test_pixel_centres_survive_the_grid(column: int, row: int) -> None:
    x, y = to_grid(column + 0.5, row + 0.5, width=160, height=224)
    back_x, back_y = to_pixels(x, y, width=160, height=224)
    assert (int(back_x), int(back_y)) == (column, row)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 4000), st.integers(1, 4000))
def test_every_grid_point_is_inside_the_viewport(x: int, y: int, width: int, height: int) -> None:
    px, py = to_pixels(x, y, width=width, height=height)
    assert 0 <= px < width
    assert 0 <= py < height
