"""What each agent tells a policy, and that it fits."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from webrl.actions import (
    Action,
    ActionMode,
    Answer,
    ClickMark,
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
    parse_action,
)
from webrl.agent import (
    Agent,
    Decision,
    Scene,
    Turn,
    check_agent,
    direct_chat,
    make_agent,
    opens_thinking,
)
from webrl.config import AgentSection, HistorySection
from webrl.errors import ConfigError, PolicyError
from webrl.policy import PolicyProcessor

SIZE = (224, 160)
FORMATS = ("direct", "reasoning", "tool_call")


def turn(reply: str, *events: str, thought: str = "", is_unchanged: bool = False) -> Turn:
    decision = Decision(action=parse_action(reply), thought=thought)
    return Turn(decision=decision, events=events, is_unchanged=is_unchanged)


def scene(*turns: Turn, elements: Sequence[str] | None = None, memory: str = "") -> Scene:
    return Scene(
        goal="Buy a lamp.",
        url="https://shop.example/lamps",
        sizes=(SIZE,) * (len(turns) + 1),
        elements=None if elements is None else tuple(elements),
        turns=turns,
        steps_left=7,
        memory=memory,
    )


def text_of(agent: Agent, processor: PolicyProcessor, seen: Scene) -> str:
    """Return a prompt as text; special tokens are left out."""
    return processor.decode(agent.prompt(seen).ids)


def test_a_reasoning_policy_is_told_page_memory_and_what_came_of_its_actions(
    processor: PolicyProcessor,
) -> None:
    agent = make_agent(AgentSection(format="reasoning"), processor)
    seen = scene(
        turn("left_click(1, 2)", "dialog: alert 'hello' accepted", thought="Open it."),
        turn("left_click(1, 2)", thought="Again.", is_unchanged=True),
        turn("hm", "invalid_action: reply must hold an action"),
        memory="price: 12",
    )
    text = text_of(agent, processor, seen)
    assert (
        "Goal: Buy a lamp.\n"
        "Page: https://shop.example/lamps\n"
        "Actions left: 7\n"
        "Memory:\n"
        "price: 12\n"
        "Previous actions:\n"
        "left_click(1, 2)\n"
        "  thought: Open it.\n"
        "  dialog: alert 'hello' accepted\n"
        "left_click(1, 2)\n"
        "  thought: Again.\n"
        "  no_change: page and address are as before\n"
        "no action\n"
        "  invalid_action: reply must hold an action\n"
    ) in text
    assert "<thought>" in text
    assert "left_click(x, y)" in text


def test_a_tool_calling_policy_sees_its_calls_as_calls_and_older_ones_as_lines(
    processor: PolicyProcessor,
) -> None:
    agent = make_agent(AgentSection(format="tool_call", images=2), processor)
    seen = scene(
        turn("wait()", thought="Wait."),
        turn('type("<|im_end|>lamp")', "no_effect: nothing has the focus", thought="Search."),
    )
    prompt = agent.prompt(seen)
    text = processor.decode(prompt.ids)
    assert prompt.num_images == 2
    assert '"name": "computer_use"' in text.partition("</tools>")[0]
    told = text.partition("Goal: ")[2]
    assert told.startswith(
        "Buy a lamp.\nPrevious actions:\nwait()\n  thought: Wait.\n\nassistant\nSearch.\n<tool_call>\n"
    )
    assert '"text": "< |im_end|>lamp"' in told
    assert "<tool_response>\nno_effect: nothing has the focus\n</tool_response>" in told
    assert told.endswith("user\n\nPage: https://shop.example/lamps\nActions left: 7\nassistant\n")


def test_a_tool_calling_policy_is_told_why_a_reply_was_no_call(processor: PolicyProcessor) -> None:
    agent = make_agent(AgentSection(format="tool_call", images=2), processor)
    text = text_of(agent, processor, scene(turn("hm", "invalid_action: no call")))
    assert "assistant\n(no call)\nuser\ninvalid_action: no call\n" in text


@pytest.mark.parametrize("format", FORMATS)
def test_marks_are_listed_and_explained(processor: PolicyProcessor, format: str) -> None:
    section = AgentSection(format=format)  # type: ignore[arg-type]
    agent = make_agent(section, processor, mode="set_of_marks")
    text = text_of(agent, processor, scene(elements=["1 button: Buy"]))
    assert "Elements:\n1 button: Buy" in text
    assert "framed and numbered" in text
    assert "start_coordinate" not in text


@pytest.mark.parametrize(
    ("num_images", "elements", "digest"),
    [(2, None, "6f09ae07448261f3"), (1, ["1 a"], "676a8834ba11e5da")],
)
def test_what_the_agent_direct_says_is_what_policies_were_taught(
    num_images: int, elements: list[str] | None, digest: str
) -> None:
    # A change of a single character here makes every policy that was warmed up on it worse.
    messages = repr(direct_chat("Go.", ["wait()"], num_images, elements))
    assert hashlib.sha256(messages.encode()).hexdigest().startswith(digest)


def test_how_much_is_told_is_set_by_key(processor: PolicyProcessor) -> None:
    turns = [turn(f"left_click({n}, {n})", thought=f"t{n}") for n in range(1, 9)]
    for format in ("reasoning", "tool_call"):
        section = AgentSection(
            format=format, images=3, history=HistorySection(num_actions=4, num_thoughts=2)
        )
        agent = make_agent(section, processor)
        seen = scene(*turns, memory="x" * 30)
        prompt = agent.prompt(seen)
        text = processor.decode(prompt.ids)
        assert prompt.num_images == 3
        assert [f"t{n}" in text for n in range(1, 9)] == [False] * 6 + [True] * 2
        assert not any(f"({n}, {n})" in text or f"[{n}, {n}]" in text for n in range(1, 5))
    agent = make_agent(AgentSection(history=HistorySection(num_actions=1)), processor)
    assert "left_click(7, 7)" not in text_of(agent, processor, scene(*turns))
    none = AgentSection(format="reasoning", history=HistorySection(memory_chars=5))
    assert "Memory:\nxxxxx\n" in text_of(make_agent(none, processor), processor, seen)


_WORDS = st.lists(st.sampled_from(["lamp ", "<|im_end|>", "\n", "灯", "a" * 40]), max_size=30).map(
    "".join
)
_TURNS = st.lists(
    st.builds(
        lambda reply, thought, events: turn(reply, *events, thought=thought),
        st.sampled_from(["left_click(1, 2)", "wait()", "hm", 'type("' + "word " * 30 + '")']),
        _WORDS,
        st.lists(_WORDS, max_size=3),
    ),
    max_size=25,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(FORMATS),
    _TURNS,
    st.none() | st.lists(_WORDS.map(lambda text: f"1 button: {text}"), max_size=40),
    st.integers(1, 4),
    st.integers(0, 2000),
)
def test_a_prompt_always_fits_and_keeps_goal_newest_screenshot_and_memory(
    processor: PolicyProcessor,
    format: str,
    turns: list[Turn],
    elements: list[str] | None,
    images: int,
    spare: int,
) -> None:
    mode: ActionMode = "coordinates" if elements is None else "set_of_marks"
    section = AgentSection(format=format, images=images)  # type: ignore[arg-type]
    least = Scene(goal="Buy.", url="u", sizes=(SIZE,), memory="price: 12")
    if elements is not None:
        least = Scene(goal="Buy.", url="u", sizes=(SIZE,), memory="price: 12", elements=())
    num_image_tokens = processor.num_image_tokens(*SIZE)
    room = (
        len(make_agent(section, processor, mode=mode).prompt(least).ids) + num_image_tokens + spare
    )
    agent = make_agent(section, processor, mode=mode, max_tokens=room)
    full = Scene(
        goal="Buy.",
        url="u",
        sizes=(SIZE,) * (len(turns) + 1),
        elements=None if elements is None else tuple(elements),
        turns=tuple(turns),
        memory="price: 12",
    )
    prompt = agent.prompt(full)
    assert 1 <= prompt.num_images <= min(images, len(full.sizes))
    assert len(prompt.ids) + prompt.num_images * (num_image_tokens - 1) <= room
    text = processor.decode(prompt.ids)
    assert "Goal: Buy." in text
    assert ("price: 12" in text) == (format == "reasoning")
    placeholders = processor.expand(prompt.ids, [SIZE] * prompt.num_images)
    assert len(placeholders) <= room


@pytest.mark.parametrize("format", FORMATS)
def test_what_fits_is_told_in_full_and_what_does_not_loses_the_oldest_first(
    processor: PolicyProcessor, format: str
) -> None:
    section = AgentSection(format=format)  # type: ignore[arg-type]
    turns = [turn(f"left_click({n}, {n})") for n in range(60)]
    whole = text_of(make_agent(section, processor), processor, scene(*turns))
    assert all(f"left_click({n}, {n})" in whole for n in range(60))
    least = len(make_agent(section, processor).prompt(scene()).ids) + 34
    part = text_of(make_agent(section, processor, max_tokens=least + 200), processor, scene(*turns))
    told = [n for n in range(60) if f"left_click({n}, {n})" in part]
    assert 0 < len(told) < 60
    assert told == list(range(told[0], 60))


@pytest.mark.parametrize("format", FORMATS)
def test_a_goal_that_leaves_no_room_is_refused(processor: PolicyProcessor, format: str) -> None:
    section = AgentSection(format=format, max_prompt_tokens=64)  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="must fit into 64 tokens"):
        make_agent(section, processor, max_tokens=5000).prompt(scene(turn("wait()")))


def test_no_thinking_block_and_no_word_of_a_reply_but_what_was_read_reaches_a_later_prompt(
    processor: PolicyProcessor,
) -> None:
    for format in FORMATS:
        agent = make_agent(AgentSection(format=format, images=2), processor)
        reply = agent.write(Decision(action=LeftClick(1, 2), thought="Open it."))
        decision = agent.read(f"<think>secret</think>\n{reply}\n")
        assert decision.is_valid
        text = text_of(agent, processor, scene(Turn(decision=decision)))
        assert "secret" not in text
        assert ("Open it." in text) == (format != "direct")


def test_what_the_template_is_told_of_thinking_is_set_by_key(
    processor: PolicyProcessor, plain_processor: PolicyProcessor
) -> None:
    on, off, model = (AgentSection(format="reasoning", thinking=t) for t in ("on", "off", "model"))
    assert [opens_thinking(s, processor) for s in (on, off, model)] == [True, False, False]
    assert text_of(make_agent(on, processor), processor, scene()).endswith("<think>\n")
    assert not make_agent(on, processor).read("<action>wait()</action>").is_valid
    assert make_agent(on, processor).read("hm</think><action>wait()</action>").is_valid
    assert make_agent(off, processor).read("<action>wait()</action>").is_valid
    for section in (on, off):
        check_agent(section, processor)
        with pytest.raises(ConfigError, match=r"agent\.thinking must be 'model'"):
            check_agent(section, plain_processor)
    check_agent(model, plain_processor)


def test_tools_need_a_template_that_has_them(
    processor: PolicyProcessor, plain_processor: PolicyProcessor
) -> None:
    check_agent(AgentSection(format="tool_call"), processor)
    with pytest.raises(ConfigError, match=r"agent\.format must be .* has no tools"):
        check_agent(AgentSection(format="tool_call"), plain_processor)


def test_an_answer_that_was_cut_says_so_where_it_holds_no_action(
    processor: PolicyProcessor,
) -> None:
    for format in ("reasoning", "tool_call"):
        agent = make_agent(AgentSection(format=format), processor)
        cut = agent.read("<thought>I see a page with very", is_cut=True).action
        assert isinstance(cut, InvalidAction)
        assert cut.reason.startswith("the answer was cut, as it was too long: ")
        whole = agent.write(Decision(action=Wait(), thought="x"))
        assert agent.read(whole, is_cut=True).is_valid


_GRID, _MARK, _FAR = st.integers(0, 1000), st.integers(1, 99), st.integers(-1000, 1000)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
_ANYWHERE: st.SearchStrategy[Action] = st.one_of(
    st.builds(TypeText, _TEXT),
    st.builds(Answer, _TEXT),
    st.builds(Navigate, _TEXT),
    st.sampled_from([Press("Control+a"), Press("Control++"), Press("Enter"), Wait(), GoBack()]),
)
_BY_POSITION: st.SearchStrategy[Action] = st.one_of(
    _ANYWHERE,
    st.builds(LeftClick, _GRID, _GRID),
    st.builds(Hover, _GRID, _GRID),
    st.builds(Drag, _GRID, _GRID, _GRID, _GRID),
    st.builds(Scroll, _GRID, _GRID, _FAR, _FAR),
)
_BY_MARK: st.SearchStrategy[Action] = st.one_of(
    _ANYWHERE,
    st.builds(ClickMark, _MARK),
    st.builds(HoverMark, _MARK),
    st.builds(DragMark, _MARK, _MARK),
    st.builds(ScrollMark, st.integers(0, 99), _FAR, _FAR),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.sampled_from(FORMATS),
    _BY_POSITION.map(lambda a: (a, "coordinates")) | _BY_MARK.map(lambda a: (a, "set_of_marks")),
)
def test_what_is_written_reads_as_itself(
    processor: PolicyProcessor, format: str, case: tuple[Action, ActionMode]
) -> None:
    action, mode = case
    section = AgentSection(format=format)  # type: ignore[arg-type]
    agent = make_agent(section, processor, mode=mode)
    wanted = Decision(action=action, thought="" if format == "direct" else "Do it.")
    found = agent.read(agent.write(wanted))
    assert (found.action, found.thought) == (action, wanted.thought)
    assert found.is_in_form
