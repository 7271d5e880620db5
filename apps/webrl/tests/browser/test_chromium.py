"""Where the browser is looked for, and what is said when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from webrl.browser import find_chromium
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
