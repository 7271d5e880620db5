"""Tasks of one's own, from a JSON-lines file."""

from __future__ import annotations

from pathlib import Path

import pytest
from webrl.errors import TaskError
from webrl.tasks import Viewport, load_task_file, load_tasks

GOOD = '{"name": "a", "url": "https://a.example/", "goal": "What?", "answer": "4[0-9]"}'


def _file(folder: Path, *lines: str) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_lines_become_tasks_of_the_suite_web(tmp_path: Path) -> None:
    other = (
        '{"name": "b", "url": "https://b.example/", "goal": "Go.", "final_url": "https://b.*",'
        ' "viewport": {"width": 640, "height": 480}, "max_steps": 3}'
    )
    first, second = load_tasks([f"tasks:{_file(tmp_path, GOOD, '', other)}"])
    assert (first.full_name, first.reset, first.viewport) == (
        "web/a",
        "new_context",
        Viewport(1280, 720),
    )
    assert (second.full_name, second.max_steps, second.viewport) == ("web/b", 3, Viewport(640, 480))
    pair = GOOD.replace('"answer"', '"viewport": [160, 224], "answer"')
    assert load_task_file(_file(tmp_path, pair)).tasks[0].viewport == Viewport(160, 224)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("not json", "line 2: JSON is malformed"),
        ('{"name": "b", "url": "https://b.example/"}', "missing required field `goal`"),
        (GOOD.replace('"answer"', '"answr"'), "unknown field `answr`"),
        (GOOD.replace('"4[0-9]"', '"4["'), "answer must be a regular expression, got '4['"),
        (
            GOOD.replace('"answer": "4[0-9]"', '"max_steps": 3'),
            "Give answer, final_url or state_script.",
        ),
        (GOOD.replace("https://a.example/", "file:///etc/passwd"), "url must start with http"),
        (GOOD.replace('"What?"', '" "'), "goal must not be blank"),
        (GOOD.replace('"answer": "4[0-9]"', '"answer": "x", "max_steps": 0'), "max_steps must be"),
        (GOOD.replace('"answer": "4[0-9]"', '"answer": "x", "settle_s": -1'), "settle_s must be"),
        (GOOD, "name must be unique, got 'a' again"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(TaskError, match="line 2: ") as caught:
        load_task_file(_file(tmp_path, GOOD, line))
    assert reason in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"task file must be readable, got .*none.jsonl"):
        load_task_file(tmp_path / "none.jsonl")


def test_an_empty_file_is_no_task_file(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="task file must hold a task"):
        load_task_file(_file(tmp_path, "", " "))


def test_lines_that_are_no_task_are_passed_over_and_told_up_to_a_share(tmp_path: Path) -> None:
    lines = [GOOD.replace('"a"', f'"t{number}"', 1) for number in range(8)]
    path = _file(tmp_path, *lines[:3], "not json", "", *lines[3:], lines[0])
    found = load_task_file(path, max_bad_share=0.2)
    assert [task.name for task in found.tasks] == [f"t{number}" for number in range(8)]
    assert [row.line for row in found.bad_rows] == [4, 11]
    assert "JSON is malformed" in found.bad_rows[0].problem
    assert "name must be unique, got 't0' again" in found.bad_rows[1].problem
    assert found.num_rows == 10
    with pytest.raises(TaskError, match=r"line 4: .*Of 10 lines 2 are no task.*0.19 allows 1"):
        load_task_file(path, max_bad_share=0.19)
    with pytest.raises(TaskError, match="line 4: JSON is malformed"):
        load_task_file(path)
