"""The grammar: total parser, canonical formatter, grid."""

from __future__ import annotations

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
    to_grid,
    to_pixels,
)

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
