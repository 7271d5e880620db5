from __future__ import annotations

import socket
from typing import Any, cast

import pytest
from awrl_trainer import ActorConfig, OptimizerConfig
from webrl.training.actor_rank import EngineSpec, UpdateEngine


def rank_zero() -> UpdateEngine:
    config = ActorConfig(optimizer=OptimizerConfig(lr=1e-3))
    no_pixels = cast("Any", None)
    return UpdateEngine(EngineSpec(policy_path="none", actor=config), 0, 1, no_pixels)


def test_ranks_meet_on_a_port_that_rank_zero_holds_from_the_moment_it_is_told() -> None:
    engines = [rank_zero() for _ in range(4)]
    places = [engine.rendezvous() for engine in engines]
    assert len({port for _, port in places}) == 4
    for host, port in places:
        with (
            socket.socket() as other,
            pytest.raises(OSError, match="Address already in use"),
        ):
            other.bind((host, port))
    assert [engine.rendezvous() for engine in engines] == places
