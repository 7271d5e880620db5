"""Keys that say from where the web is reached: what they refuse, and that no secret is repeated."""

from __future__ import annotations

import pytest
from webrl.config import config_warnings, load_config
from webrl.errors import ConfigError


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


def test_a_proxy_that_looks_names_up_is_warned_about() -> None:
    settings = ["env.proxy=http://proxy.example:3128", "env.proxy_resolves_names=true"]
    warnings = config_warnings(load_config("laptop", settings).config)
    assert any("only the proxy can keep pages away" in text for text in warnings)
