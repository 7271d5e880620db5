"""Where the processes of a run listen, and what they ask for."""

from __future__ import annotations

import pickle

import pytest
from webrl.cluster.network import INTERFACE_VARIABLES, LOCAL, LOOPBACK, NetworkConfig


def test_on_one_machine_everything_listens_on_loopback_and_asks_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in INTERFACE_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    assert LOCAL.host() == LOOPBACK
    assert LOCAL.token is None
    assert LOCAL.environment() == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    assert LOCAL.environment() == {"GLOO_SOCKET_IFNAME": "lo"}


def test_a_token_travels_to_workers_and_is_not_shown() -> None:
    network = NetworkConfig(token="secret-of-the-run")
    assert pickle.loads(pickle.dumps(network)).token == "secret-of-the-run"
    assert "secret" not in repr(network)
