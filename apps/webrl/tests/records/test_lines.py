"""A file of whole lines, whatever the disk does and whenever the process was killed."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webrl.records.lines import LineFile


def lines_of(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_lines_that_a_full_disk_refuses_are_left_out_whole_and_later_ones_are_written(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    full_disk: Callable[[int], AbstractContextManager[None]],
) -> None:
    path = tmp_path / "x.jsonl"
    file = LineFile(path)
    file.append({"step": 1})
    with full_disk(path.stat().st_size + 5):
        file.append({"step": 2})
        file.append({"step": 3})
    file.append({"step": 4})
    assert lines_of(path) == [1, 4]
    assert file.num_refused == 2
    assert "a line is left out" in caplog.text
    file.close()


@given(cut=st.integers(0, 60), is_long=st.booleans())
@settings(max_examples=40, deadline=None)
def test_half_a_line_of_a_kill_is_cut_before_the_next_one(
    tmp_path_factory: pytest.TempPathFactory, cut: int, is_long: bool
) -> None:
    path = tmp_path_factory.mktemp("lines") / "x.jsonl"
    whole = b"".join(b'{"step":%d}\n' % number for number in range(5))
    text = whole + b'{"text": "' + b"x" * (3 << 20 if is_long else 0)
    path.write_bytes(text[: len(text) - cut] if not is_long else text)
    file = LineFile(path)
    file.append({"step": 9})
    file.close()
    steps = lines_of(path)
    assert steps[-1] == 9
    assert steps[:-1] == list(range(len(steps) - 1))


def test_later_steps_are_forgotten(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "x.jsonl")
    for step in (1, 2, 3):
        file.append({"step": step})
    file.rewind(1)
    file.append({"step": 2})
    file.close()
    assert lines_of(tmp_path / "x.jsonl") == [1, 2]


def test_damaged_lines_are_left_out_when_later_steps_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    damaged = [b'{"step": 2, "tex{"step": 3}', b"[]", b"null", b'{"other": 1}', b'{"step": "x"}']
    path.write_bytes(b"\n".join([b'{"step": 1}', *damaged, b'{"step": 2}', b'{"step": 4}', b""]))
    file = LineFile(path)
    file.rewind(3)
    file.close()
    assert lines_of(path) == [1, 2]
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.jsonl"]
