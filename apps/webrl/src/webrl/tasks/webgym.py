r"""Tasks in WebGym's format: a web site, a goal and a rubric for a judge, one JSON object a line.

    {"task_id": "t1", "task_name": "What does the red lamp cost?", "website": "https://shop.example",
     "domain": "Lifestyle & Leisure", "subdomain": "Shopping", "difficulty": "easy",
     "evaluator_reference": ["The page of the red lamp is shown"], "reference_answer": "19 dollars"}

Invariants:

* every line is checked before anything starts; an error names the file, the line and the field;
* `evaluator_reference` is a list of facts, each a text or an object with a `description`; an
  object's own `facts` are facts by themselves; the same list as a JSON text is taken too;
* `difficulty` is a label, or the number of facts that WebGym bins into easy, medium and hard; it
  decides how many actions an episode may take, and another label counts as hard;
* `allow_private`, this system's own field, says of a site that it may be at a private address;
* fields of other data sets are passed over, a misspelt field of this one is refused.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import msgspec

from webrl.errors import TaskError
from webrl.tasks.task import Rubric, Task, Viewport
from webrl.tasks.task_file import read_tasks

SUITE = "webgym"
PREFIX = "webgym:"
"""A name `webgym:PATH` stands for every task of the file."""

STEP_LIMITS = {"easy": (10, 30), "medium": (20, 50), "hard": (30, 70)}
"""Actions of one episode by difficulty, in training and in evaluation, as published."""
_VIEWPORT = Viewport(1280, 720)
_SETTLE_S = 10.0
_DIFFICULTIES = ((3, "easy"), (6, "medium"))
"""Most facts of each label; above the last is `hard`."""


class _Group(msgspec.Struct, frozen=True):
    description: str = ""
    facts: list[str] = []


_Facts = list[str | _Group]


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str | int
    task_name: str
    website: str
    evaluator_reference: str | _Facts
    domain: str | None = None
    subdomain: str | None = None
    difficulty: str | int | None = None
    reference_answer: str | None = None
    allow_private: bool = False


def load_webgym_file(path: str | Path) -> list[Task]:
    """Return the tasks of a file in WebGym's format, in its order; blank lines do not count.

    Raises:
        TaskError: The file can not be read, holds no task, or a line is not one; the message
            holds file, line and field.
    """
    return read_tasks(path, _task)


def _task(text: bytes) -> Task:
    _check_spelling(msgspec.json.decode(text))
    line = msgspec.json.decode(text, type=_Line)
    goal, name = line.task_name.strip(), str(line.task_id).strip()
    for field, value in (("task_id", name), ("task_name", goal)):
        if not value:
            raise TaskError(f"{field} must not be blank, got {value!r}. Fill it in.")
    facts = _facts(line.evaluator_reference)
    reference = (line.reference_answer or "").strip() or None
    if not facts and reference is None:
        raise TaskError(
            "evaluator_reference must hold a fact when there is no reference_answer, got none. "
            "Say what the judge shall look for."
        )
    difficulty = _label(line.difficulty, len(facts))
    max_steps, test_max_steps = STEP_LIMITS.get(difficulty, STEP_LIMITS["hard"])
    return Task(
        suite=SUITE,
        name=name,
        url=_address(line.website),
        goal=goal,
        max_steps=max_steps,
        test_max_steps=test_max_steps,
        reset="new_context",
        viewport=_VIEWPORT,
        settle_s=_SETTLE_S,
        rubric=Rubric(facts=facts, reference_answer=reference),
        difficulty=difficulty,
        allow_private=line.allow_private,
    )


def _check_spelling(line: object) -> None:
    """Refuse a field that is nearly one of this format's."""
    if not isinstance(line, dict):
        raise TaskError("a task must be a JSON object, got something else. Write {...}.")
    known = _Line.__struct_fields__
    for field in map(str, line):  # pyright: ignore[reportUnknownArgumentType]
        near = difflib.get_close_matches(field, known, n=1, cutoff=0.85)
        if field not in known and near and near[0] not in line:
            raise TaskError(f"{field} must be a known field. Did you mean {near[0]!r}?")


def _address(website: str) -> str:
    address = website.strip()
    if "://" not in address and not address.startswith("/"):
        address = f"https://{address}"
    if not address.startswith(("http://", "https://", "/")) or len(address.split()) != 1:
        raise TaskError(
            f"website must be an address with http:// or https://, got {website!r}. "
            "Give the whole address."
        )
    return address


def _facts(reference: str | _Facts) -> tuple[str, ...]:
    if isinstance(reference, str):
        text = reference.strip()
        if not text.startswith("["):
            return (text,) if text else ()
        try:
            reference = msgspec.json.decode(text, type=_Facts)
        except msgspec.DecodeError as error:
            raise TaskError(
                f"evaluator_reference must be a list of facts, got a text that holds none: {error}."
            ) from error
    facts = [fact.strip() for entry in reference for fact in _texts(entry)]
    if not all(facts):
        raise TaskError("evaluator_reference must hold no blank fact, got ''. Remove it.")
    return tuple(facts)


def _texts(entry: str | _Group) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    group = entry.description.strip()
    if not entry.facts:
        return [group]
    return [f"{fact} ({group})" if group and fact.strip() else fact for fact in entry.facts]


def _label(difficulty: str | int | None, num_facts: int) -> str:
    if isinstance(difficulty, str) and difficulty.strip():
        text = difficulty.strip().lower()
        if not text.isdecimal():
            return text
        difficulty = int(text)
    count = difficulty if isinstance(difficulty, int) else num_facts
    return next((label for most, label in _DIFFICULTIES if count <= most), "hard")
