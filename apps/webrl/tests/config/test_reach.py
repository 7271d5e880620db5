"""Keys that say from where the web is reached: what they refuse, and that no secret is repeated."""

from __future__ import annotations

import pytest
from webrl.config import config_warnings, load_config
from webrl.errors import ConfigError
from webrl.machine_check import check_browsers, check_tasks


@pytest.mark.parametrize(
    ("setting", "rule"),
    [
        ("env.proxy=socks5://proxy.example", "must be an address with http:// or https://"),
        ("env.proxy=http://someone:a-secret-word@proxy.example", "use proxy_credentials_env"),
        ("env.proxy=http://proxy.example/?key=a-secret-word", "of a host and a port alone"),
        ("env.proxy=http://proxy.example:port", "must be a well-formed address"),
        ("env.proxy_credentials_env=someone:a-secret-word", "the name of an environment variable"),
    ],
)
def test_a_proxy_is_refused_without_repeating_what_may_be_a_secret(setting: str, rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("laptop", [setting])
    text = str(caught.value)
    assert rule in text
    assert "a-secret-word" not in text


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        (["env.browsers=['chrome.example']"], "an address with ws://, wss://, http:// or https://"),
        (
            ["env.browsers=['ws://127.0.0.1/?token=a-secret-word']"],
            "names of environment variables",
        ),
        (
            ["env.browsers=['wss://x:a-secret-word@chrome.example']"],
            "names of environment variables",
        ),
        (
            ["env.browsers=['ws://chrome.example/?token={BROWSER_TOKEN}']"],
            "wss:// or https:// where",
        ),
        (["env.browsers=['wss://chrome.example']"], "must be on this machine"),
        (["env.browsers=['ws://[::1]:1', 'ws://[::1]:1']"], "must be different ones"),
        (
            [
                "env.browsers=['wss://chrome.example']",
                "env.browser_network=own",
                "env.proxy=http://proxy.example",
            ],
            "env.proxy must be unset while env.browser_network is 'own'",
        ),
    ],
)
def test_browsers_elsewhere_are_refused_where_a_rule_can_not_be_kept(
    settings: list[str], rule: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("laptop", settings)
    text = str(caught.value)
    assert rule in text
    assert "a-secret-word" not in text


def test_what_nothing_of_a_run_can_keep_is_warned_about_and_local_tasks_are_refused() -> None:
    address = "wss://chrome.example/?token={A_TOKEN_OF_NOBODY}"
    settings = [f"env.browsers=['{address}']", "env.browser_network=own"]
    config = load_config("laptop", settings).config
    assert config.env.browsers == (address,)
    assert any("whoever runs the browsers has to" in text for text in config_warnings(config))
    tasks = check_tasks(config)
    assert not tasks.is_ok
    assert "miniwob/" in tasks.detail
    browsers = check_browsers(config)
    assert not browsers.is_ok
    assert "A_TOKEN_OF_NOBODY" in browsers.detail


def test_a_proxy_that_looks_names_up_is_warned_about() -> None:
    settings = ["env.proxy=http://proxy.example:3128", "env.proxy_resolves_names=true"]
    warnings = config_warnings(load_config("laptop", settings).config)
    assert any("only the proxy can keep pages away" in text for text in warnings)
