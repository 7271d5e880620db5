"""`webrl doctor --url`: what it says about a server's release, and about a server that is not there."""

from __future__ import annotations

import pytest
from webrl.cli import main
from webrl.server_check import KNOWN_BAD_VERSIONS, check_version


@pytest.mark.parametrize("version", KNOWN_BAD_VERSIONS)
def test_a_release_that_garbles_pictures_is_named_with_the_fix(version: str) -> None:
    check = check_version({"version": version})
    assert not check.is_ok
    assert version in check.detail
    assert "garbles" in check.detail
    assert "sglang==" in check.fix


def test_other_releases_and_the_embedded_server_pass() -> None:
    assert check_version({"version": "0.5.16"}).detail == "SGLang 0.5.16"
    assert check_version({"version": "embedded"}).is_ok


def test_a_server_that_does_not_answer_is_one_failed_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--url", "http://127.0.0.1:9"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("FAIL server")
    assert "http://127.0.0.1:9" in out


@pytest.mark.parametrize(
    "url",
    ["localhost:1", "http://", "http://:80", "http://localhost:99999", "http://[::1", "ftp://x"],
)
def test_a_malformed_address_is_one_line_with_the_fix(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--url", url]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"webrl: --url must be an address with http:// or https://, got {url!r}."
    )


def test_options_about_a_server_need_its_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--policy", "somewhere"]) == 2
    assert "--policy must come with --url" in capsys.readouterr().err
