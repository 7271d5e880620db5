"""What the repository's gates share: the tree, its packages, and what they declare."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parent.parent
SKIPPED = {".venv", ".uv", ".git", "__pycache__", "dist", "runs", "node_modules", ".browser"}
IMPORT_NAMES = {"pillow": "PIL"}
"""Distributions whose import name is not their own with underscores."""

LONG_FIRST = (
    "apps/webrl/tests/end_to_end",
    "apps/webrl/tests/browser",
    "packages/awrl-pixelstore",
    "tests",
    "packages/awrl-trainer",
    "apps/webrl/tests/embedded",
)
"""Folders that two workers begin with, so that neither ends long after the other."""

Find = Callable[..., list[Path]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """One distribution of the workspace."""

    name: str
    """Distribution name."""
    folder: Path
    """Its folder."""

    @property
    def module(self) -> str:
        """Import name."""
        return self.name.replace("-", "_")

    @property
    def source(self) -> Path:
        """Folder of its sources."""
        return self.folder / "src" / self.module

    @property
    def project(self) -> dict[str, Any]:
        """Its `[project]` table."""
        return tomllib.loads((self.folder / "pyproject.toml").read_text())["project"]

    def dependencies(self, *, with_extras: bool = False) -> set[str]:
        """Return the import names of what it declares."""
        lines: list[str] = list(self.project.get("dependencies", []))
        if with_extras:
            lines += [
                line
                for extra in self.project.get("optional-dependencies", {}).values()
                for line in extra
            ]
        names = [re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0] for line in lines]
        return {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in names}


def libraries() -> list[Package]:
    """Return the five libraries."""
    folders = sorted((ROOT / "packages").iterdir())
    return [Package(name=folder.name, folder=folder) for folder in folders]


APP = Package(name="webrl", folder=ROOT / "apps" / "webrl")


class RequirementTies:
    """Watches a run, and fails it when every test of a mechanism that it started was skipped.

    A test is tied by `@pytest.mark.requirement("id")`; `requirements.toml` holds the sentences.
    """

    def __init__(self) -> None:
        """Start with no test seen."""
        self._outcomes: dict[str, dict[str, str]] = defaultdict(dict)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Have the reports of each test name its mechanisms, those of other processes too."""
        for item in session.items:
            marks = item.iter_markers("requirement")
            item.user_properties += [("requirement", id_) for mark in marks for id_ in mark.args]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a tied test ended."""
        if report.when == "call" or report.outcome != "passed":
            for name, id_ in report.user_properties:
                if name == "requirement":
                    self._outcomes[str(id_)][report.nodeid] = report.outcome

    def unproved(self) -> dict[str, list[str]]:
        """Return the skipped tests of each mechanism of which no test ran."""
        return {
            id_: sorted(outcomes)
            for id_, outcomes in self._outcomes.items()
            if set(outcomes.values()) == {"skipped"}
        }

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Turn a green run into a failed one; a worker has seen only its share of it."""
        is_worker = hasattr(session.config, "workerinput")
        if not is_worker and self.unproved() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say which mechanisms nothing proved."""
        for id_, tests in self.unproved().items():
            terminalreporter.write_line(
                f"requirement {id_!r} is unproved, its tests were skipped: {', '.join(tests)}",
                red=True,
            )


def pytest_configure(config: pytest.Config) -> None:
    """Watch the whole run: a hook of this file alone would see the tests beside it only."""
    config.pluginmanager.register(RequirementTies())


def folder_of(node_id: str) -> str:
    """Return the library, the folder of the app's tests, or the gates, that a test belongs to."""
    parts = node_id.partition("::")[0].split("/")[:-1]
    return "/".join(parts[: {"packages": 2, "apps": 4}.get(parts[0], 1)])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Give whole folders to the workers: a cluster, server or policy is shared within one."""
    from xdist.scheduler import LoadScopeScheduling

    class FolderScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return folder_of(nodeid)

    return FolderScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the long folders where several workers share the tests."""
    if hasattr(config, "workerinput"):
        rank = {folder: number for number, folder in enumerate(LONG_FIRST)}
        items.sort(key=lambda item: rank.get(folder_of(item.nodeid), len(rank)))


@pytest.fixture(scope="session")
def requirement_ties() -> type[RequirementTies]:
    """The class that watches a run."""
    return RequirementTies


@pytest.fixture(scope="session")
def root() -> Path:
    """The top of the repository."""
    return ROOT


@pytest.fixture(params=libraries(), ids=lambda package: package.name)
def library(request: pytest.FixtureRequest) -> Package:
    """Each of the five libraries."""
    return request.param


@pytest.fixture(params=[*libraries(), APP], ids=lambda package: package.name)
def package(request: pytest.FixtureRequest) -> Package:
    """Each of the five libraries, and the app."""
    return request.param


@pytest.fixture(scope="session")
def app() -> Package:
    """The app."""
    return APP


@pytest.fixture(scope="session")
def find() -> Find:
    """Return files below the root by patterns, build and cache folders left out."""

    def search(*patterns: str) -> list[Path]:
        found = {path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()}
        return sorted(path for path in found if not SKIPPED & set(path.relative_to(ROOT).parts))

    return search
