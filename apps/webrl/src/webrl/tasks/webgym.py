r"""Tasks in WebGym's format: a web site, a goal and a rubric for a judge, one JSON object a line.

    {"task_id": "t1", "task_name": "What does the red lamp cost?", "website": "https://shop.example",
     "domain": "Lifestyle & Leisure", "subdomain": "Shopping", "difficulty": "easy",
     "evaluator_reference": ["The page of the red lamp is shown"], "reference_answer": "19 dollars"}

Invariants:

* every line is checked before anything starts; an error names the file, the line and the field;
* `evaluator_reference` is a list of facts, each a text or an object with a `description`; an
  object's own `facts` are facts by themselves; the same list as a JSON text is taken too;
* `difficulty` is a label, or the number of facts that WebGym bins into easy, medium and hard; a run's
  `step_limits` say by it how many actions an episode may take;
* `allow_private`, this system's own field, says of a site that it may be at a private address;
* fields of other data sets are passed over, a misspelt field of this one is refused.

292,000 lines are read in seconds: what depends on the names of a line's fields is asked once for each
set of names.
"""

from __future__ import annotations

import difflib
import functools
from pathlib import Path

import msgspec

from webrl.errors import TaskError
from webrl.tasks.task import Rubric, Task, Viewport
from webrl.tasks.task_file import TaskFile, read_tasks

SUITE = "webgym"
PREFIX = "webgym:"
"""A name `webgym:PATH` stands for every task of the file."""

_MAX_STEPS, _TEST_MAX_STEPS = 30, 70
"""What a run's `step_limits` replaces."""
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


_NAMES = msgspec.json.Decoder(dict[str, msgspec.Raw])
_DECODER = msgspec.json.Decoder(_Line)


def load_webgym_file(path: str | Path, *, max_bad_share: float = 0.0) -> TaskFile:
    """Return the tasks of a file in WebGym's format; blank lines do not count.

    Args:
        max_bad_share: Largest share of lines that may be no task.

    Raises:
        TaskError: The file can not be read, holds no task, or too many lines that are none; the
            message holds file, line and field.
    """
    return read_tasks(path, _task, max_bad_share=max_bad_share)


def _task(text: bytes) -> Task:
    _check_spelling(tuple(_NAMES.decode(text)))
    line = _DECODER.decode(text)
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
    return Task(
        suite=SUITE,
        name=name,
        url=_address(line.website),
        goal=goal,
        max_steps=_MAX_STEPS,
        test_max_steps=_TEST_MAX_STEPS,
        reset="new_context",
        viewport=_VIEWPORT,
        settle_s=_SETTLE_S,
        rubric=Rubric(facts=facts, reference_answer=reference),
        difficulty=difficulty,
        domain=_stripped(line.domain),
        subdomain=_stripped(line.subdomain),
        allow_private=line.allow_private,
    )


@functools.lru_cache(maxsize=4096)
def _check_spelling(names: tuple[str, ...]) -> None:
    """Refuse a field that is nearly one of this format's."""
    known = _Line.__struct_fields__
    for field in names:
        near = difflib.get_close_matches(field, known, n=1, cutoff=0.85)
        if field not in known and near and near[0] not in names:
            raise TaskError(f"{field} must be a known field. Did you mean {near[0]!r}?")


def _stripped(label: str | None) -> str | None:
    return (label or "").strip() or None


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
