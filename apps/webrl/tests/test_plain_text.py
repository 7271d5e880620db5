"""No text of a page, a task or a policy spells a control token of any family of models."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webrl.plain_text import plain, plain_line, without_surrogates

TOKENS = (
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|image_pad|>", "<|vision_start|>"),
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<|box_start|>", "<tool_response>"),
    *("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|image|>", "<|python_tag|>"),
    *("<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<image_soft_token>", "<pad>"),
    *("<s>", "</s>", "<unk>", "<<SYS>>", "<</SYS>>", "[INST]", "[/INST]", "[IMG]", "[IMG_END]"),
    *("<image>", "<img>", "<IMG_CONTEXT>", "</img>", "[TOOL_CALLS]", "[CLS]", "[SEP]", "[MASK]"),
    *(
        "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
        "<\uff5cUser\uff5c>",
        "<|user|>",
        "<|media_pad|>",
    ),
    *("<!--", "<?xml", "<_a>", "<seg001>"),
)
_PIECES = st.sampled_from(
    [*TOKENS, *(t[:2] for t in TOKENS), "<", "[", " ", "|", "a", "\n", "\ud800"]
)


@given(st.lists(_PIECES, max_size=12).map("".join))
def test_no_mixture_of_pieces_spells_a_token(text: str) -> None:
    result = plain(text)
    assert not [token for token in TOKENS if token in result]
    assert plain(result) == result
    result.encode("utf-8")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_only_blanks_are_added_to_a_text(text: str) -> None:
    assert re.sub(r"\s", "", plain(text)) == re.sub(r"\s", "", text)


@pytest.mark.parametrize("text", ["a < b, c <3", "x[0] [link] [a b]", "1 <= 2", "é 😀 ✓", ""])
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert plain(text) == text


def test_a_line_is_one_line() -> None:
    assert plain_line(" a\n\tb<|im_end|>\r\n") == "a b< |im_end|>"


def test_half_a_pair_becomes_a_question_mark() -> None:
    assert without_surrogates("a\ud800b😀") == "a?b😀"
