"""Where the browser is looked for, and what is said when there is none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest
from webrl.browser import BrowserConfig, BrowserPool, find_chromium
from webrl.browser.chromium import Headless
from webrl.errors import PreflightError


def _executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_named_browser_comes_first(tmp_path: Path) -> None:
    named, system = _executable(tmp_path / "named"), _executable(tmp_path / "system")
    found = find_chromium({"AWRL_CHROMIUM": str(named)}, system_paths=[system])
    assert found == named


def test_a_named_browser_that_is_none_is_not_replaced_by_another(tmp_path: Path) -> None:
    system = _executable(tmp_path / "system")
    with pytest.raises(PreflightError, match="AWRL_CHROMIUM must be the path") as caught:
        find_chromium({"AWRL_CHROMIUM": str(tmp_path / "missing")}, system_paths=[system])
    assert "Correct the path, or unset it" in str(caught.value)


def test_places_of_distributions_come_in_their_order(tmp_path: Path) -> None:
    first, second = tmp_path / "first", _executable(tmp_path / "second")
    assert find_chromium({}, system_paths=[first, second]) == second
    _executable(first)
    assert find_chromium({}, system_paths=[first, second]) == first


def test_a_file_that_can_not_run_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    good = _executable(tmp_path / "good")
    assert find_chromium({}, system_paths=[tmp_path / "text", good]) == good


def test_the_newest_download_of_playwright_comes_last(tmp_path: Path) -> None:
    shell = "chrome-headless-shell-linux64/chrome-headless-shell"
    old = _executable(tmp_path / f"chromium_headless_shell-999/{shell}")
    new = _executable(tmp_path / f"chromium_headless_shell-1181/{shell}")
    _executable(tmp_path / "chromium-1200/chrome-linux/chrome")
    environment = {"PLAYWRIGHT_BROWSERS_PATH": str(tmp_path)}
    assert find_chromium(environment, system_paths=[]) == new
    new.unlink()
    assert find_chromium(environment, system_paths=[]) == old


def test_the_cache_of_the_home_folder_is_searched(tmp_path: Path) -> None:
    chrome = _executable(tmp_path / ".cache/ms-playwright/chromium-1200/chrome-linux/chrome")
    assert find_chromium({"HOME": str(tmp_path)}, system_paths=[]) == chrome


def test_no_browser_is_answered_with_the_ways_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="a Chromium must be installed") as caught:
        find_chromium({"HOME": str(tmp_path)}, system_paths=[tmp_path / "none"])
    for way in ("playwright install", "apt-get install chromium-headless-shell", "AWRL_CHROMIUM"):
        assert way in str(caught.value)


def test_only_a_browser_of_the_wanted_kind_is_taken(tmp_path: Path) -> None:
    shell = _executable(tmp_path / "a/chromium-headless-shell")
    whole = _executable(tmp_path / "a/chromium")
    paths = [shell, whole]
    assert find_chromium({}, headless="shell", system_paths=paths) == shell
    assert find_chromium({}, headless="new", system_paths=paths) == whole
    assert find_chromium({}, system_paths=paths) == shell
    with pytest.raises(PreflightError, match="a whole Chromium must be installed"):
        find_chromium({"HOME": str(tmp_path)}, headless="new", system_paths=[shell])


def test_a_named_browser_of_the_other_kind_is_refused(tmp_path: Path) -> None:
    shell = _executable(tmp_path / "chrome-headless-shell")
    with pytest.raises(PreflightError, match="AWRL_CHROMIUM must be the path of a whole Chromium"):
        find_chromium({"AWRL_CHROMIUM": str(shell)}, headless="new", system_paths=[])
    assert find_chromium({"AWRL_CHROMIUM": str(shell)}, headless="shell") == shell


@pytest.mark.browser
@pytest.mark.parametrize(("headless", "last"), [("shell", "--headless"), ("new", "--headless=new")])
def test_a_browser_is_started_in_its_headless_mode(headless: Headless, last: str) -> None:
    # The shell takes the other mode's switch too, so the command line can be seen without the other.
    config = BrowserConfig(num_slots=1, headless=headless, executable_path=str(find_chromium()))

    async def main() -> list[str]:
        async with BrowserPool(config) as pool:
            words = psutil.Process((await pool.browser()).pid).cmdline()
            return [word for word in words if word.startswith("--headless")]

    assert asyncio.run(main())[-1] == last
