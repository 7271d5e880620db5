"""Each library installs alone from its wheel, in an empty environment, and works there.

uv does not check version bounds between members of a workspace, so only this test sees them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Package

PLACES = (shutil.which("uv"), Path(__file__).parent.parent / ".uv" / "bin" / "uv")
UV = next((str(place) for place in PLACES if place is not None and Path(place).is_file()), None)
"""uv: the one on the path, or the one that `make setup` fetched."""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(UV is None, reason="uv is not here")]

HEAVY = {"torch", "ray", "numpy", "transformers", "aiohttp", "playwright", "safetensors", "msgspec"}
"""Distributions that an import must not bring along unless the design grants them."""
BROUGHT_BY = {
    "ray": {"aiohttp", "numpy", "msgspec", "torch"},
    "torch": {"numpy"},
    "safetensors": {"numpy"},
}
"""What a granted distribution may import by itself."""
SIBLINGS = {
    "awrl_staleness",
    "awrl_pixelstore",
    "awrl_ppo_loss",
    "awrl_rollout",
    "awrl_trainer",
    "webrl",
}
DEADLINE_S = 600


def uv(*words: str | Path, cwd: Path) -> str:
    assert UV is not None
    return run(UV, *words, cwd=cwd)


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def wheels(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of every distribution."""
    folder = tmp_path_factory.mktemp("wheels")
    uv("build", "--all-packages", "--wheel", "--out-dir", folder, cwd=root)
    return folder


@pytest.fixture(scope="session")
def locked(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The locked versions as constraints, so that nothing newer is fetched."""
    words = "export --frozen --all-packages --no-hashes --no-emit-workspace"
    exported = uv(*words.split(), cwd=root)
    lines = [line for line in exported.splitlines() if re.match(r"[A-Za-z0-9]", line)]
    file = tmp_path_factory.mktemp("locked") / "constraints.txt"
    file.write_text("\n".join(lines))
    return file


def wheel_of(package: Package, wheels: Path) -> Path:
    (wheel,) = wheels.glob(f"{package.module}-*.whl")
    return wheel


def test_a_wheel_holds_one_package_its_types_and_the_licence(
    package: Package, wheels: Path, root: Path
) -> None:
    names = zipfile.ZipFile(wheel_of(package, wheels)).namelist()
    top = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert top == {package.module}
    assert f"{package.module}/py.typed" in names
    (licence,) = (name for name in names if name.endswith("/licenses/LICENSE"))
    with zipfile.ZipFile(wheel_of(package, wheels)) as wheel:
        assert wheel.read(licence) == (root / "LICENSE").read_bytes()
    assert not [name for name in names if "tests/" in name]


def test_the_benchmarks_are_not_built(wheels: Path) -> None:
    assert not list(wheels.glob("*benchmarks*"))


def test_a_library_installs_and_imports_alone(
    library: Package, wheels: Path, locked: Path, tmp_path: Path
) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    uv("venv", "--python", sys.executable, tmp_path / "venv", cwd=tmp_path)
    install = ["pip", "install", "--python", python, "--constraint", locked]
    uv(*install, "--find-links", wheels, wheel_of(library, wheels), cwd=tmp_path)
    probe = (
        f"import sys, {library.module}; print(*sorted({{n.split('.')[0] for n in sys.modules}}))"
    )
    loaded = set(run(python, "-W", "ignore", "-c", probe, cwd=tmp_path).split())
    granted = library.dependencies() | {library.module}
    allowed = granted.union(*(BROUGHT_BY.get(name, set()) for name in granted))
    assert loaded & (HEAVY | SIBLINGS) - allowed == set()
    readme = (library.folder / "README.md").read_text()
    program = re.search(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert program is not None
    (tmp_path / "program.py").write_text(program.group(1))
    assert run(python, "-W", "ignore", "program.py", cwd=tmp_path).strip()
