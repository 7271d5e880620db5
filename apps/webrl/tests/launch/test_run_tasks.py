"""What a configuration takes of its files of tasks, and what it changes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from webrl.config import WebRLConfig, load_config
from webrl.errors import ConfigError, TaskError
from webrl.launch import run_tasks
from webrl.launch.run_tasks import bad_rows, train_tasks, weighed_tasks

LABELS = ("easy", "medium", "hard")


def write_set(path: Path, count: int = 30, *broken: str) -> Path:
    """Write a set: a third of each difficulty, three sites, two subdomains."""
    lines = [
        json.dumps(
            {
                "task_id": str(number),
                "task_name": f"Task {number}",
                "website": f"https://www.site{number % 3}.example/start",
                "domain": "Shops" if number < 20 else "News",
                "subdomain": f"part {number % 2}",
                "difficulty": LABELS[number // 10 % 3],
                "evaluator_reference": ["It is shown"],
            }
        )
        for number in range(count)
    ]
    path.write_text("\n".join([*lines, *broken]))
    return path


def config_with(*entries: str, **keys: object) -> WebRLConfig:
    settings = [f"{key}={value}" for key, value in keys.items()]
    judge = ["judge.url=http://127.0.0.1:1/v1", "judge.model=m", "judge.deadline_s=9"]
    return load_config("one_node_8gpu", [f"tasks=[{', '.join(entries)}]", *judge, *settings]).config


def names(config: WebRLConfig) -> list[str]:
    return [task.name for task in train_tasks(config)]


@pytest.mark.parametrize(
    ("keys", "numbers"),
    [
        ("difficulties=['easy']", range(10)),
        ("difficulties=['Easy', 'hard']", [*range(10), *range(20, 30)]),
        ("domains=['news']", range(20, 30)),
        ("subdomains=['part 1']", range(1, 30, 2)),
        ("sites=['site1.example']", range(1, 30, 3)),
        ("sites=['www.site1.example']", range(1, 30, 3)),
        ("sites=['site1.example'], difficulties=['easy']", [1, 4, 7]),
    ],
)
def test_a_part_of_a_file_is_chosen_by_its_labels(
    tmp_path: Path, keys: str, numbers: Iterable[int]
) -> None:
    path = write_set(tmp_path / "set.jsonl")
    assert names(config_with(f"{{name='webgym:{path}', {keys}}}")) == list(map(str, numbers))


def test_a_sample_of_a_file_is_a_matter_of_its_seed(tmp_path: Path) -> None:
    path = write_set(tmp_path / "set.jsonl")

    def drawn(seed: int) -> list[str]:
        entry = (
            f"{{name='webgym:{path}', num_tasks=8, subset_seed={seed}, sites=['site0.example']}}"
        )
        return names(config_with(entry))

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert len(set(drawn(1))) == 8
    assert drawn(1) == sorted(drawn(1), key=int)
    with pytest.raises(TaskError, match="num_tasks must be <= 30"):
        names(config_with(f"{{name='webgym:{path}', num_tasks=31}}"))


@pytest.mark.parametrize("key", ["difficulties", "domains", "subdomains", "sites"])
def test_a_label_that_no_task_has_is_refused_with_those_there_are(tmp_path: Path, key: str) -> None:
    path = write_set(tmp_path / "set.jsonl")
    with pytest.raises(TaskError, match=rf"tasks.{key} must name .* got 'none'.*\(\d+\)"):
        names(config_with(f"{{name='webgym:{path}', {key}=['none']}}"))


def test_what_chooses_among_the_tasks_of_a_file_needs_one() -> None:
    entry = "{name='miniwob/click-test', num_tasks=3, prefix='a-'}"
    with pytest.raises(ConfigError, match=r"tasks\[0\].num_tasks must be unset but for a file"):
        config_with(entry)


def test_two_parts_of_one_file_are_weighed_by_themselves_and_must_not_meet(tmp_path: Path) -> None:
    path = write_set(tmp_path / "set.jsonl")
    easy, hard = (
        f"{{name='webgym:{path}', difficulties=['{label}'], weight={weight}}}"
        for label, weight in (("easy", 3.0), ("hard", 1.0))
    )
    weighed = weighed_tasks(config_with(easy, hard))
    assert [(entry.weight, int(task.name)) for entry, task in weighed] == [
        *((3.0, number) for number in range(10)),
        *((1.0, number) for number in range(20, 30)),
    ]
    every = f"{{name='webgym:{path}'}}"
    with pytest.raises(TaskError, match=r"webgym/0.* from both .*tasks\[0\].*tasks\[1\]"):
        train_tasks(config_with(easy, every))


def test_files_that_share_names_are_refused_or_told_apart_by_a_prefix(tmp_path: Path) -> None:
    paths = [write_set(tmp_path / f"{name}.jsonl", 30) for name in "ab"]
    plain = [f"{{name='webgym:{path}'}}" for path in paths]
    with pytest.raises(TaskError, match=r"'webgym/0' from both .*set tasks.prefix"):
        train_tasks(config_with(*plain))
    told = config_with(plain[0], f"{{name='webgym:{paths[1]}', prefix='b-'}}")
    assert names(told)[29:31] == ["29", "b-0"]


def test_step_limits_go_by_difficulty_and_give_way_to_an_entry_s_own(tmp_path: Path) -> None:
    path = write_set(tmp_path / "set.jsonl")

    def limits(entry: str, **keys: object) -> list[tuple[int, int]]:
        config = config_with(f"{{name='webgym:{path}'{entry}}}", **keys)
        both = zip(train_tasks(config), run_tasks.test_tasks(config), strict=True)
        return list(dict.fromkeys((task.max_steps, test.max_steps) for task, test in both))

    assert limits("") == [(10, 30), (20, 50), (30, 70)]
    changed = {"step_limits.easy": 7, "step_limits.test_hard": 90}
    assert limits("", **changed) == [(7, 30), (20, 50), (30, 90)]
    assert limits(", max_steps=5", **changed) == [(5, 5)]
    assert limits(", max_steps=5, test_max_steps=6") == [(5, 6)]
    assert limits(", test_max_steps=6") == [(10, 6), (20, 6), (30, 6)]


def test_lines_that_are_passed_over_are_told(tmp_path: Path) -> None:
    path = write_set(tmp_path / "set.jsonl", 300, "not json", "{}")
    config = config_with(f"{{name='webgym:{path}'}}")
    assert len(names(config)) == 300
    [sentence] = bad_rows(config)
    assert "2 of 302 lines are no task and are passed over, the first one line 301" in sentence
    strict = config_with(f"{{name='webgym:{path}', max_bad_share=0.0}}")
    with pytest.raises(TaskError, match=r"line 301: .*Of 302 lines 2 are no task"):
        names(strict)


def test_a_file_is_read_and_chosen_from_once(tmp_path: Path) -> None:
    path = write_set(tmp_path / "set.jsonl")
    entry = f"{{name='webgym:{path}', difficulties=['easy']}}"
    assert train_tasks(config_with(entry))[0] is train_tasks(config_with(entry))[0]
    path.write_text(path.read_text().replace("Task 0", "Task zero"))
    assert train_tasks(config_with(entry))[0].goal == "Task zero"
