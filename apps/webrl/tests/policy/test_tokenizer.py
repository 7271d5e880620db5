from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from webrl.policy import ActionGrid, action_pieces, build_tokenizer

TOKENIZER = build_tokenizer(ActionGrid())


@given(st.text(max_size=60))
def test_any_text_is_tokenised_and_decodes_to_itself(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert TOKENIZER.decode(ids) == text


def test_each_piece_of_an_action_is_one_token() -> None:
    for piece in action_pieces(ActionGrid()):
        assert len(TOKENIZER.encode(piece, add_special_tokens=False)) == 1


def test_the_words_of_prompts_are_one_token_each() -> None:
    ids = TOKENIZER.encode("Goal: Click button ONE.\nPrevious actions:\n", add_special_tokens=False)
    assert len(ids) == 11


def test_ids_are_the_same_for_the_same_grid() -> None:
    again = build_tokenizer(ActionGrid())
    assert again.get_vocab() == TOKENIZER.get_vocab()
