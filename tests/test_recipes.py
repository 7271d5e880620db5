"""People, pre-commit and CI call the same recipes, and the top level holds nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

RECIPES = {"setup", "demo", "test", "lint", "types", "gates", "bench", "build", "docs"}
TOP_LEVEL = {
    ".ci",
    ".github",
    ".gitignore",
    ".pre-commit-config.yaml",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "apps",
    "benchmarks",
    "docs",
    "examples",
    "packages",
    "pyproject.toml",
    "tests",
    "uv.lock",
}
CALLERS = (".ci/run", ".github/workflows/ci.yml", ".pre-commit-config.yaml", "CONTRIBUTING.md")
SCRIPTS = (".ci/run", ".ci/setup", ".ci/installed")
SECOND_TRY = ".ci/second_try"


def targets(root: Path) -> set[str]:
    return set(re.findall(r"^([a-z]+):", (root / "Makefile").read_text(), re.MULTILINE))


def test_every_promised_recipe_exists(root: Path) -> None:
    assert targets(root) >= RECIPES


@pytest.mark.parametrize("caller", CALLERS)
def test_every_recipe_that_is_called_exists(caller: str, root: Path) -> None:
    # A recipe stands at the start of a command; prose that holds the word does not count.
    text = (root / caller).read_text()
    called = set(re.findall(r"(?m)(?:^ *(?:if ! )?|run: |entry: |`)make ([a-z]+)", text))
    assert called
    assert called - targets(root) == set()


def test_continuous_integration_starts_where_contributors_do(root: Path) -> None:
    assert ".ci/run" in (root / ".github/workflows/ci.yml").read_text()


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_executable_and_parse(script: str, root: Path) -> None:
    assert os.access(root / script, os.X_OK)
    subprocess.run(["bash", "-n", str(root / script)], check=True)


def second_try(root: Path, folder: Path, failed_first: list[str], known: str) -> tuple[int, str]:
    """Run a copy of the script beside a list of its own."""
    (folder / "second_try").write_text((root / SECOND_TRY).read_text())
    (folder / "second_try.txt").write_text(known)
    (folder / "failed").write_text(json.dumps(dict.fromkeys(failed_first, True)))
    done = subprocess.run(
        [sys.executable, str(folder / "second_try"), str(folder / "failed")],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_first_second_try_is_counted_and_named(root: Path, tmp_path: Path) -> None:
    status, text = second_try(root, tmp_path, ["a.py::test_x", "a.py::test_y"], "# none\n")
    assert status == 0
    assert text.startswith("passed only at the second try: 2\n  a.py::test_x\n")


def test_a_test_that_needs_a_second_try_again_fails_the_run(root: Path, tmp_path: Path) -> None:
    status, text = second_try(root, tmp_path, ["a.py::test_x"], "# seen before\na.py::test_x\n")
    assert status == 1
    assert "a.py::test_x (not the first time)" in text


def test_the_list_of_second_tries_names_tests_that_exist(root: Path) -> None:
    listed = (root / ".ci/second_try.txt").read_text().splitlines()
    files = {line.split("::")[0] for line in listed if line and not line.startswith("#")}
    assert [file for file in files if not (root / file).is_file()] == []


def test_the_set_up_asks_for_a_browser_in_words_that_the_app_understands(root: Path) -> None:
    found = re.search(r"FIND_CHROMIUM='(.*?)'", (root / ".ci/setup").read_text(), re.DOTALL)
    assert found is not None
    for line in found[1].splitlines():
        if line.startswith(("import ", "from ")):
            subprocess.run([sys.executable, "-c", line], check=True)


def test_a_wrong_browser_variable_stops_the_set_up_before_anything_is_fetched(root: Path) -> None:
    done = subprocess.run(
        [str(root / ".ci/setup")],
        env={**os.environ, "AWRL_CHROMIUM": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "AWRL_CHROMIUM names no Chromium that starts: /nowhere" in done.stderr
    assert "environment:" not in done.stderr


def test_the_top_level_holds_nothing_else(root: Path) -> None:
    if not (root / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    assert {line.split("/")[0] for line in listed.splitlines()} <= TOP_LEVEL
