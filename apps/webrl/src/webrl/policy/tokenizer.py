"""The tiny policy's tokenizer: any text, and one token for each piece of an action.

Invariants:

* every string is tokenised (byte-level BPE over all 256 bytes) and decodes to itself;
* `left_click(`, each `X, ` and each `Y)` of the action grid is one token, so a click is three
  tokens and the end token, and its decoded text is what `webrl.actions` parses;
* the same grid gives the same ids on every machine: the merges come from a fixed word list.
"""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from webrl.policy.config import ActionGrid

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
VISION_START = "<|vision_start|>"
VISION_END = "<|vision_end|>"
IMAGE_PAD = "<|image_pad|>"
VIDEO_PAD = "<|video_pad|>"

SPECIAL_TOKENS = (
    END_OF_TEXT,
    TURN_START,
    TURN_END,
    VISION_START,
    VISION_END,
    IMAGE_PAD,
    VIDEO_PAD,
)

CLICK = "left_click("

VERB_PIECES = (
    CLICK,
    'type("',
    "scroll(",
    "wait()",
    "go_back()",
    'navigate("',
    'answer("',
    '")',
)
"""Pieces of actions that take no position; the closing quote and bracket is one piece too."""

_WORDS = (
    "user assistant system Goal: Previous actions: Click click on the a button Button buttons "
    "ONE ONE ONE TWO TWO TWO then Close Close dialog box by clicking x link tab text Enter enter "
    "into field press submit Submit Select select and option checkbox item color colored image "
    "shape widget Focus textbox input find Find word number from list menu page page open Open "
    "okay ok OK cancel Cancel yes Yes no No next Next previous Previous date Choose one two three "
    "red blue green yellow white black grey purple orange cyan pink magenta lime olive"
)
"""Words of prompts; a word that comes often enough here becomes one token."""

_NUM_BPE = 600
"""Size of the byte-level part: 256 bytes and the merges that make the words above whole."""


def click_text(x: int, y: int) -> str:
    """Return the action text of a click at `x`, `y` on the 0-1000 grid."""
    return f"{CLICK}{x}, {y})"


def action_pieces(grid: ActionGrid) -> tuple[str, ...]:
    """Return every piece that is one token, verbs first, then x, then y."""
    columns = tuple(f"{x}, " for x in grid.x_values())
    rows = tuple(f"{y})" for y in grid.y_values())
    return VERB_PIECES + columns + rows


def build_tokenizer(grid: ActionGrid) -> PreTrainedTokenizerFast:
    """Build the tokenizer for one action grid.

    Args:
        grid: Positions that get tokens of their own.

    Returns:
        A tokenizer whose ids are: byte-level BPE, special tokens, action pieces.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_NUM_BPE,
        min_frequency=1,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    words = _WORDS.split()
    tokenizer.train_from_iterator([*words, *(f" {word}" for word in words)], trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in SPECIAL_TOKENS])
    pieces = [AddedToken(piece, normalized=False) for piece in action_pieces(grid)]
    tokenizer.add_tokens(pieces)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
