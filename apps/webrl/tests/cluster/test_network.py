"""Where the processes of a run listen, and what they ask for."""

from __future__ import annotations

import pickle

import pytest
from webrl.cluster.network import GLOO_INTERFACE, LOCAL, LOOPBACK, NetworkConfig


def test_on_one_machine_everything_listens_on_loopback_and_asks_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(GLOO_INTERFACE, raising=False)
    assert LOCAL.host() == LOOPBACK
    assert LOCAL.token is None
    assert LOCAL.environment() == {GLOO_INTERFACE: "lo"}


def test_a_token_travels_to_workers_and_is_not_shown() -> None:
    network = NetworkConfig(token="secret-of-the-run")
    assert pickle.loads(pickle.dumps(network)).token == "secret-of-the-run"
    assert "secret" not in repr(network)
