"""Where the browser is.

Invariant: the answer is a real binary, not a shell wrapper: the process id that the pool records
must be the browser's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from webrl.errors import PreflightError

Headless: TypeAlias = Literal["shell", "new"]
"""`shell`: the headless shell; `new`: a whole Chromium that opens no window."""

SHELL_NAMES = frozenset({"chromium-headless-shell", "chrome-headless-shell", "headless_shell"})
"""What distributions and Playwright call the headless shell."""

ENVIRONMENT_VARIABLE = "AWRL_CHROMIUM"
"""Names the browser to use; nothing else is tried when it is set."""

SYSTEM_PATHS: tuple[Path, ...] = (
    Path("/usr/lib/chromium/chromium-headless-shell"),
    Path("/usr/lib/chromium/chromium"),
    Path("/usr/lib/chromium-browser/chromium-browser"),
    Path("/opt/google/chrome/chrome"),
)
"""Browsers of distributions, best first: the headless shell starts twice as fast in half the
memory. `/usr/bin/chromium*` are wrappers and therefore not here."""

_PLAYWRIGHT_PATTERNS = (
    "chromium_headless_shell-*/chrome-headless-shell-linux*/chrome-headless-shell",
    "chromium_headless_shell-*/chrome-linux*/headless_shell",
    "chromium-*/chrome-linux*/chrome",
)

_NAMES: Mapping[Headless, str] = {"shell": "a headless shell", "new": "a whole Chromium"}

FIX = (
    "Install one with `playwright install --with-deps --only-shell chromium`, or on Debian and "
    "Ubuntu with `apt-get install chromium-headless-shell fonts-liberation` (or `chromium`), or "
    f"set {ENVIRONMENT_VARIABLE} to the path of a Chromium."
)


def find_chromium(
    environment: Mapping[str, str] | None = None,
    *,
    headless: Headless | None = None,
    system_paths: Iterable[Path] = SYSTEM_PATHS,
    is_usable: Callable[[Path], bool] = lambda path: path.is_file() and os.access(path, os.X_OK),
) -> Path:
    """Return the Chromium to drive.

    Order: `AWRL_CHROMIUM`, the distribution's headless shell, the distribution's Chromium,
    Playwright's own download (headless shell first, newest first).

    Args:
        environment: Environment variables; those of this process when `None`.
        headless: Kind of browser that is wanted; either when `None`.
        system_paths: Places of distributions, best first.
        is_usable: Whether a path is an executable file.

    Raises:
        PreflightError: None is there, or `AWRL_CHROMIUM` names no executable file, or one of the
            other kind.
    """
    environment = os.environ if environment is None else environment
    named = environment.get(ENVIRONMENT_VARIABLE, "")
    if named:
        if is_usable(Path(named)):
            return _of_kind(Path(named), headless)
        raise PreflightError(
            f"{ENVIRONMENT_VARIABLE} must be the path of an executable Chromium, got {named!r}. "
            "Correct the path, or unset it to search the usual places."
        )
    for path in (*system_paths, *_playwright_paths(environment)):
        if headless in (None, kind_of(path)) and is_usable(path):
            return path
    if headless is not None:
        raise PreflightError(
            f"{_NAMES[headless]} must be installed for env.headless = {headless!r}, got none. {FIX}"
        )
    raise PreflightError(f"a Chromium must be installed, got none. {FIX}")


def kind_of(path: Path) -> Headless:
    """Return which kind of browser `path` is, by its name."""
    return "shell" if path.name in SHELL_NAMES else "new"


def headless_switches(headless: Headless | None) -> tuple[str, ...]:
    """Return the switches of a kind of browser, to stand behind the driver's own `--headless`.

    An older Chromium takes that for the mode that the headless shell has become.
    """
    return ("--headless=new",) if headless == "new" else ()


def _of_kind(named: Path, headless: Headless | None) -> Path:
    if headless in (None, kind_of(named)):
        return named
    raise PreflightError(
        f"{ENVIRONMENT_VARIABLE} must be the path of {_NAMES[headless]} for env.headless = "
        f"{headless!r}, got {str(named)!r}. Correct the path, or unset one of the two."
    )


def _playwright_paths(environment: Mapping[str, str]) -> list[Path]:
    """Return Playwright's downloads, headless shells first, newest first."""
    named = environment.get("PLAYWRIGHT_BROWSERS_PATH", "")
    cache = Path(environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/")) / ".cache")
    root = Path(named) if named and named != "0" else cache / "ms-playwright"
    return [path for pattern in _PLAYWRIGHT_PATTERNS for path in _newest_first(root, pattern)]


def _newest_first(root: Path, pattern: str) -> list[Path]:
    def revision(path: Path) -> int:
        digits = path.relative_to(root).parts[0].rpartition("-")[2]
        return int(digits) if digits.isdigit() else -1

    return sorted(root.glob(pattern), key=revision, reverse=True)
