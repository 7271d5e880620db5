"""Tasks in WebGym's format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from webrl.errors import TaskError
from webrl.tasks import Rubric, Task, Viewport, load_tasks, load_webgym_file

GOOD: dict[str, object] = {
    "task_id": "t1",
    "task_name": "What does the red lamp cost?",
    "website": "https://shop.example/lamps",
    "domain": "Lifestyle & Leisure",
    "subdomain": "Shopping",
    "difficulty": "easy",
    "evaluator_reference": ["The red lamp is shown", "Its price is shown"],
    "reference_answer": "19 dollars",
}


def _file(folder: Path, *lines: str) -> Path:
    path = folder / "train.jsonl"
    path.write_text("\n".join(lines))
    return path


def _load(folder: Path, **changes: object) -> Task:
    return load_webgym_file(_file(folder, json.dumps(GOOD | changes))).tasks[0]


def test_a_line_becomes_a_task_with_a_rubric_and_a_label(tmp_path: Path) -> None:
    own = {"benchmark_name": "mind2web-live", "allow_private": True}
    extra = json.dumps(GOOD | {"task_id": 2} | own)
    first, second = load_tasks([f"webgym:{_file(tmp_path, json.dumps(GOOD), '', extra)}"])
    assert (first.full_name, second.full_name) == ("webgym/t1", "webgym/2")
    assert (first.url, first.goal) == ("https://shop.example/lamps", GOOD["task_name"])
    assert first.viewport == Viewport(1280, 720)
    assert (first.reset, first.allow_private, first.is_seeded) == ("new_context", False, False)
    assert second.allow_private
    assert first.difficulty == "easy"
    assert first.rubric == Rubric(
        facts=("The red lamp is shown", "Its price is shown"), reference_answer="19 dollars"
    )


@pytest.mark.parametrize(
    ("reference", "facts"),
    [
        ([{"id": 1, "description": "Lamp shown"}], ("Lamp shown",)),
        (
            [{"description": "Lamp", "facts": ["red", "on sale"]}, "Price shown"],
            ("red (Lamp)", "on sale (Lamp)", "Price shown"),
        ),
        ('["Lamp shown", {"description": "Price shown"}]', ("Lamp shown", "Price shown")),
        ("Lamp shown", ("Lamp shown",)),
        ([], ()),
    ],
)
def test_every_spelling_of_the_facts_is_read(
    tmp_path: Path, reference: object, facts: tuple[str, ...]
) -> None:
    rubric = _load(tmp_path, evaluator_reference=reference).rubric
    assert rubric is not None
    assert rubric.facts == facts


@pytest.mark.parametrize(
    ("difficulty", "label"),
    [("Hard", "hard"), (3, "easy"), (4, "medium"), ("7", "hard"), (None, "easy"), ("", "easy")],
)
def test_difficulty_is_a_label(tmp_path: Path, difficulty: object, label: str) -> None:
    assert _load(tmp_path, difficulty=difficulty).difficulty == label


def test_domain_subdomain_and_site_are_kept(tmp_path: Path) -> None:
    task = _load(tmp_path, subdomain=" Shopping ", website="https://WWW.Shop.example:8080/lamps")
    assert (task.domain, task.subdomain) == ("Lifestyle & Leisure", "Shopping")
    assert task.site == "www.shop.example:8080"
    assert _load(tmp_path, domain=None).domain is None


def test_a_bare_host_is_opened_over_https(tmp_path: Path) -> None:
    assert _load(tmp_path, website="www.shop.example").url == "https://www.shop.example"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"website": "file:///etc/passwd"}, "website must be an address with http:// or https://"),
        ({"website": "two words"}, "website must be an address"),
        ({"website": 3}, "$.website"),
        ({"task_name": " "}, "task_name must not be blank"),
        ({"task_id": ""}, "task_id must not be blank"),
        ({"evaluator_reference": 3}, "$.evaluator_reference"),
        ({"evaluator_reference": [""]}, "evaluator_reference must hold no blank fact"),
        ({"evaluator_reference": [{"id": 1}]}, "evaluator_reference must hold no blank fact"),
        ({"evaluator_reference": "[1]"}, "evaluator_reference must be a list of facts"),
        ({"evaluator_reference": [], "reference_answer": ""}, "must hold a fact"),
        ({"refrence_answer": "x", "reference_answer": ...}, "Did you mean 'reference_answer'?"),
        ({"website": ...}, "missing required field `website`"),
        ({"task_id": "t1"}, "name must be unique, got 't1' again"),
    ],
)
def test_a_wrong_line_is_named_with_its_field(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    line = {key: v for key, v in (GOOD | {"task_id": "t2"} | changes).items() if v is not ...}
    path = _file(tmp_path, json.dumps(GOOD), json.dumps(line))
    with pytest.raises(TaskError, match=r"train\.jsonl, line 2: ") as caught:
        load_webgym_file(path)
    assert reason in str(caught.value)


def test_a_line_that_is_no_object_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="line 1: Expected `object`"):
        load_webgym_file(_file(tmp_path, "[1]"))


def test_a_task_is_judged_by_its_page_or_by_the_judge_and_not_by_both() -> None:
    with pytest.raises(TaskError, match="state_script must be None when rubric is set"):
        Task(suite="web", name="x", url="/x", goal="g", rubric=Rubric(), state_script="({})")
