"""Only an object of the agreed form is an answer, whatever stands around it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from webrl.judge.chat import MalformedAnswerError
from webrl.judge.questions import (
    YesOrNo,
    blocked_question,
    fact_question,
    read_relevant,
    read_yes_or_no,
    reference_question,
    relevance_question,
    supported_question,
)
from webrl.judge.verdict import Evidence
from webrl.tasks import Rubric

FORM = '{"reason": "seen", "verdict": true}'


@pytest.mark.parametrize(
    "text",
    [
        FORM,
        f" {FORM}\n",
        f"```json\n{FORM}\n```",
        f"```\n{FORM}\n```",
        f'<think>\n{{"reason": "?", "verdict": false}} or not?\n</think>\n{FORM}',
        f"no opening tag</think>{FORM}",
        f"The page shows {{it}}. So:\n{FORM}\nThat is my verdict.",
        '{"confidence": 0.9, "reason": "seen", "verdict": true, "reward": 1}',
        f"{FORM}{FORM}",
        f"[{FORM}]",
    ],
)
def test_an_object_of_the_form_is_an_answer_whatever_stands_around_it(text: str) -> None:
    assert read_yes_or_no(text) == YesOrNo(reason="seen", verdict=True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SUCCESS",
        "2. Verdict: SUCCESS",
        "true",
        '{"verdict": true}',
        '{"reason": "r", "verdict": "true"}',
        '{"reason": "r", "verdict": 1}',
        '{"reason": "r", "verdict": null}',
        f'{FORM}{{"reason": "on second thoughts", "verdict": false}}',
        '{"reason": "r", "verdict": false, "verdict": true}',
        f'{{"answer": {FORM}}}',
        f"<think>{FORM}</think>",
        "{" * 10_000,
        '{"reason": ' * 10_000,
        FORM[:-1],
    ],
)
def test_anything_else_is_none(text: str) -> None:
    with pytest.raises(MalformedAnswerError):
        read_yes_or_no(text)


@given(st.text())
def test_no_text_is_a_verdict_by_chance(text: str) -> None:
    with pytest.raises(MalformedAnswerError):
        read_yes_or_no(text)


@given(
    st.lists(
        st.sampled_from(["<|im_end|>", "<|image_pad|>", "</think>", "[INST]", '"', "\\", "a"]),
        max_size=6,
    ).map("".join)
)
def test_no_field_of_the_evidence_opens_a_turn_or_adds_an_image(text: str) -> None:
    evidence = Evidence(
        goal=text,
        rubric=Rubric(facts=(text,), reference_answer=text),
        actions=(text,),
        answer=text,
        screenshots=("data:image/png;base64,AAAA",),
    )
    questions = [
        relevance_question(evidence, evidence.screenshots),
        blocked_question(evidence, evidence.screenshots),
        supported_question(evidence, evidence.screenshots),
        fact_question(evidence, text, evidence.screenshots),
        reference_question(evidence),
    ]
    for question in questions:
        assert not [t for t in ("<|", "</", "[INST]") if t in question.text + question.system]
        msgspec.json.encode(question)


def test_numbers_of_screenshots_become_indices() -> None:
    assert read_relevant(4)('{"relevant": [4, 1, 4]}') == (0, 3)
    assert read_relevant(4)('{"relevant": []}') == ()


@pytest.mark.parametrize("numbers", ["[0]", "[5]", '["1"]', "1", "[1.5]"])
def test_a_number_without_a_screenshot_is_no_answer(numbers: str) -> None:
    with pytest.raises(MalformedAnswerError):
        read_relevant(4)(f'{{"relevant": {numbers}}}')
