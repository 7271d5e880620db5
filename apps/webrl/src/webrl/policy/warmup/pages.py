"""Synthetic pages that look like small web tasks, with the positions that solve them.

Invariants:

* a page is a function of the generator's state only: no browser, no font of the machine (Pillow's
  built-in one), so warm-up data is the same everywhere;
* every page has at least one bin of the action grid inside the visible part of its target.

The look (a yellow goal bar, grey buttons, a dialog with a title bar) imitates the real pages
loosely: sizes, shades and lettering differ on purpose, so that reinforcement learning on the real
pages has something to learn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from webrl.policy.config import ActionGrid
from webrl.policy.tokenizer import click_text

GOAL_BAR_PX = 50
"""Height of the goal bar at the top of a page."""

PAGE_WIDTH_PX, PAGE_HEIGHT_PX = 160, 210
"""Size of the task area; what the viewport shows below it is dark."""

_BUTTON_WORDS = ("ONE", "TWO")

Box = tuple[int, int, int, int]
"""Left, top, right, bottom in pixels, right and bottom excluded."""


@dataclass(frozen=True, slots=True)
class SyntheticPage:
    """One page, its goal, and the actions that are right on it."""

    pixels: np.ndarray
    """`[H, W, 3]` uint8 screenshot of the viewport."""
    goal: str
    """Goal text."""
    previous_actions: tuple[str, ...]
    """Actions so far, oldest first."""
    solutions: tuple[str, ...]
    """Every action text that hits the target, at least one; nearest to its middle first."""


class PageFactory:
    """Draws synthetic pages of the wanted kinds, in turn."""

    def __init__(self, grid: ActionGrid, kinds: Sequence[str], rng: np.random.Generator) -> None:
        self._grid = grid
        self._rng = rng
        makers: dict[str, Callable[[], SyntheticPage | None]] = {
            "button": self._button_page,
            "dialog": self._dialog_page,
            "sequence": self._sequence_page,
            "field": self._field_page,
            "section": self._section_page,
        }
        self._makers = [makers[kind] for kind in kinds]
        self._next = 0

    def draw(self) -> SyntheticPage:
        """Return the next page; kinds come in turn."""
        maker = self._makers[self._next % len(self._makers)]
        self._next += 1
        page = maker()
        while page is None:
            page = maker()
        return page

    def _button_page(self) -> SyntheticPage | None:
        canvas, owner = self._two_buttons()
        return self._page(canvas, f"Click button {_BUTTON_WORDS[0]}.", (), owner == 1)

    def _sequence_page(self) -> SyntheticPage | None:
        canvas, owner = self._two_buttons()
        words = _BUTTON_WORDS
        goal = f"Click button {words[0]}, then click button {words[1]}."
        if self._rng.random() < 0.5:
            return self._page(canvas, goal, (), owner == 1)
        first = self._clicks(owner == 1)
        if not first:
            return None
        previous = (str(self._rng.choice(first)),)
        return self._page(canvas, goal, previous, owner == 2)

    def _dialog_page(self) -> SyntheticPage | None:
        canvas = _Canvas(self._grid)
        rng = self._rng
        width, height = int(rng.integers(85, 126)), int(rng.integers(65, 106))
        left = int(rng.integers(2, PAGE_WIDTH_PX - width - 1))
        top = int(rng.integers(GOAL_BAR_PX + 2, PAGE_HEIGHT_PX - height - 1))
        canvas.rectangle((left, top, left + width, top + height), (255, 255, 255), (170, 170, 170))
        bar = (left + 3, top + 3, left + width - 3, top + int(rng.integers(19, 26)))
        canvas.rectangle(bar, _grey(rng, 215, 240), (190, 190, 190))
        size = int(rng.integers(14, 19))
        x = bar[2] - size - int(rng.integers(1, 6))
        y = (bar[1] + bar[3] - size) // 2
        close = (x, y, x + size, y + size)
        canvas.rectangle(close, _grey(rng, 230, 250), (180, 180, 180))
        canvas.cross(close, _grey(rng, 40, 110))
        for line in range(int(rng.integers(1, 4))):
            canvas.text((left + 7, bar[3] + 6 + 12 * line), _gibberish(rng, 14), 10, (51, 51, 51))
        goal = 'Close the dialog box by clicking the "x".'
        return self._page(canvas, goal, (), self._mask(close))

    def _field_page(self) -> SyntheticPage | None:
        canvas = _Canvas(self._grid)
        rng = self._rng
        width, height = int(rng.integers(100, 141)), int(rng.integers(17, 28))
        left = int(rng.integers(1, PAGE_WIDTH_PX - width))
        top = int(rng.integers(GOAL_BAR_PX + 4, PAGE_HEIGHT_PX - height - 3))
        field = (left, top, left + width, top + height)
        canvas.rectangle(field, (255, 255, 255), _grey(rng, 90, 150))
        return self._page(canvas, "Focus into the textbox.", (), self._mask(field))

    def _section_page(self) -> SyntheticPage | None:
        canvas = _Canvas(self._grid)
        rng = self._rng
        top = GOAL_BAR_PX + int(rng.integers(2, 7))
        header = (3, top, PAGE_WIDTH_PX - 4, top + int(rng.integers(14, 21)))
        canvas.rectangle(header, (0, 127, 255), (0, 62, 255))
        canvas.text((6, top + 2), f"Section #{int(rng.integers(1, 99))}", 11, (255, 255, 255))
        bottom = header[3]
        is_open = bool(rng.random() < 0.6)
        if is_open:
            num_lines = int(rng.integers(3, 7))
            canvas.rectangle(
                (4, bottom, PAGE_WIDTH_PX - 5, bottom + 11 * num_lines + 4),
                (255, 255, 255),
                (0, 0, 0),
            )
            for line in range(num_lines):
                canvas.text((6, bottom + 1 + 11 * line), _gibberish(rng, 24), 10, (0, 0, 0))
            bottom += 11 * num_lines + 4
        width, height = int(rng.integers(80, 106)), int(rng.integers(26, 36))
        left = int(rng.integers(2, PAGE_WIDTH_PX - width - 1))
        above = bottom + int(rng.integers(6, 50))
        button = (left, above, left + width, above + height)
        if button[3] > PAGE_HEIGHT_PX:
            return None
        canvas.rectangle(button, _grey(rng, 220, 245), _grey(rng, 90, 150))
        canvas.centred_text(button, "Submit", int(rng.integers(11, 15)))
        opened = self._clicks(self._mask(header))
        if not opened:
            return None
        previous = (str(rng.choice(opened)),) if is_open else ()
        target = self._mask(button if is_open else header)
        goal = "Expand the section below and click submit."
        return self._page(canvas, goal, previous, target)

    def _two_buttons(self) -> tuple[_Canvas, np.ndarray]:
        canvas = _Canvas(self._grid)
        rng = self._rng
        shape = (self._grid.viewport_height, self._grid.viewport_width)
        owner = np.zeros(shape, dtype=np.int64)
        for index, word in enumerate(_BUTTON_WORDS):
            size = int(rng.integers(34, 47))
            left = int(rng.integers(1, PAGE_WIDTH_PX - size))
            top = int(rng.integers(GOAL_BAR_PX + 1, PAGE_HEIGHT_PX - size))
            box = (left, top, left + size, top + size)
            canvas.rectangle(box, _grey(rng, 220, 245), _grey(rng, 90, 150))
            canvas.centred_text(box, word, int(rng.integers(11, 15)))
            owner[top : top + size, left : left + size] = index + 1
        return canvas, owner

    def _mask(self, box: Box) -> np.ndarray:
        mask = np.zeros((self._grid.viewport_height, self._grid.viewport_width), dtype=bool)
        mask[box[1] : box[3], box[0] : box[2]] = True
        return mask

    def _page(
        self, canvas: _Canvas, goal: str, previous: tuple[str, ...], target: np.ndarray
    ) -> SyntheticPage | None:
        solutions = self._clicks(target)
        if not solutions:
            return None
        canvas.wrapped_text((3, 2), goal, 10)
        return SyntheticPage(canvas.pixels(), goal, previous, tuple(solutions))

    def _clicks(self, target: np.ndarray) -> list[str]:
        half, step = self._grid.bin_px // 2, self._grid.bin_px
        hits = np.argwhere(target[half::step, half::step])
        if len(hits):
            middle = np.argwhere(target).mean(axis=0)
            distance = np.square(hits * step + half - middle).sum(axis=1)
            hits = hits[np.argsort(distance, kind="stable")]
        xs, ys = self._grid.x_values(), self._grid.y_values()
        return [click_text(xs[column], ys[row]) for row, column in hits.tolist()]


class _Canvas:
    """A page being drawn: goal bar above, dark strip below."""

    def __init__(self, grid: ActionGrid) -> None:
        size = (grid.viewport_width, grid.viewport_height)
        self._image = Image.new("RGB", size, (85, 85, 85))
        self._draw = ImageDraw.Draw(self._image)
        self.rectangle((0, 0, PAGE_WIDTH_PX, PAGE_HEIGHT_PX), (255, 255, 255), None)
        self.rectangle((0, 0, PAGE_WIDTH_PX, GOAL_BAR_PX), (255, 255, 0), None)

    def rectangle(
        self, box: Box, fill: tuple[int, int, int], outline: tuple[int, int, int] | None
    ) -> None:
        left, top, right, bottom = box
        self._draw.rectangle((left, top, right - 1, bottom - 1), fill=fill, outline=outline)

    def cross(self, box: Box, fill: tuple[int, int, int]) -> None:
        left, top, right, bottom = box[0] + 4, box[1] + 4, box[2] - 5, box[3] - 5
        self._draw.line((left, top, right, bottom), fill=fill, width=3)
        self._draw.line((left, bottom, right, top), fill=fill, width=3)

    def text(self, at: tuple[int, int], text: str, size: int, fill: tuple[int, int, int]) -> None:
        self._draw.text(at, text, font=_font(size), fill=fill)

    def centred_text(self, box: Box, text: str, size: int) -> None:
        centre = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
        self._draw.text(centre, text, font=_font(size), fill=(0, 0, 0), anchor="mm")

    def wrapped_text(self, at: tuple[int, int], text: str, size: int) -> None:
        line = ""
        x, y = at
        for word in text.split():
            longer = f"{line} {word}".strip()
            if line and self._draw.textlength(longer, font=_font(size)) > PAGE_WIDTH_PX - 2 * x:
                self.text((x, y), line, size, (0, 0, 0))
                line, y = word, y + size + 1
            else:
                line = longer
        self.text((x, y), line, size, (0, 0, 0))

    def pixels(self) -> np.ndarray:
        return np.asarray(self._image)


@lru_cache(maxsize=32)
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _gibberish(rng: np.random.Generator, length: int) -> str:
    letters = rng.choice(list("abcdelmnorstu    "), size=int(rng.integers(length // 2, length + 1)))
    return "".join(letters)


def _grey(rng: np.random.Generator, low: int, high: int) -> tuple[int, int, int]:
    value = int(rng.integers(low, high))
    return (value, value, value)
