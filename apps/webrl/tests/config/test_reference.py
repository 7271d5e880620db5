"""Every key is described, and the page in docs/ is what the sources say."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path
from typing import Any

from webrl.config import WebRLConfig, all_keys, field_docs, reference_page

PAGE = Path(__file__).parents[4] / "docs" / "configuration.md"


def sections(root: type[Any]) -> list[type[Any]]:
    found = [root]
    for hint in typing.get_type_hints(root).values():
        inner = typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint
        if dataclasses.is_dataclass(inner) and isinstance(inner, type):
            found += sections(inner)
    return found


def test_every_field_of_every_section_has_a_text_beneath_it() -> None:
    for section in sections(WebRLConfig):
        names = {field.name for field in dataclasses.fields(section)}
        assert set(field_docs(section)) == names, section.__name__


def test_the_page_names_every_key() -> None:
    page = reference_page()
    for key in all_keys():
        assert f"`{key.removeprefix('tasks[].')}`" in page


def test_the_page_in_docs_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference_page(), "run: make docs"
