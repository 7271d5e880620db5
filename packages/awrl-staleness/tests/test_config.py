"""Validation and the public surface."""

import ast
import importlib
import pathlib
import threading

import awrl_staleness
import pytest
from awrl_staleness import (
    TERMINAL_STATES,
    TRANSITIONS,
    ConfigError,
    EpisodeState,
    StalenessConfig,
    StalenessManager,
)

SOURCE = pathlib.Path(awrl_staleness.__file__).parent


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_concurrent", 0, "max_concurrent must be at least 1, got 0"),
        ("consumer_batch_size", 0, "consumer_batch_size must be at least 1, got 0"),
        ("max_off_policyness", -1, "max_off_policyness must be at least 0, got -1"),
    ],
)
def test_a_number_out_of_range_is_refused_by_name(name: str, value: int, message: str) -> None:
    numbers = {"max_concurrent": 1, "consumer_batch_size": 1, "max_off_policyness": 0, name: value}
    with pytest.raises(ConfigError, match=message):
        StalenessConfig(**numbers)


def test_an_extra_bound_cannot_take_a_builtin_name() -> None:
    manager = StalenessManager(
        StalenessConfig(max_concurrent=1, consumer_batch_size=1, max_off_policyness=0)
    )
    with pytest.raises(ConfigError, match="name of its own, got 'staleness'"):
        manager.capacity(staleness=3)


def test_terminal_states_have_no_way_out() -> None:
    for row in TRANSITIONS.values():
        assert not TERMINAL_STATES.intersection(row)
    reachable = {after for row in TRANSITIONS.values() for after in row.values()}
    assert reachable | {EpisodeState.ENQUEUED} == set(EpisodeState)


def test_all_is_sorted_and_complete() -> None:
    assert awrl_staleness.__all__ == sorted(awrl_staleness.__all__)
    exported: set[str] = set()
    for path in SOURCE.glob("*.py"):
        if path.stem in ("__init__", "ledger", "tally", "bounds"):
            continue
        tree = ast.parse(path.read_text())
        exported.update(
            node.name
            for node in tree.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name[0] != "_"
        )
    internal = {"take_snapshot", "restore_ledger", "take_statistics"}
    missing = exported - internal - set(awrl_staleness.__all__)
    assert missing == set()


def test_only_the_standard_library_and_msgspec_are_imported() -> None:
    roots: set[str] = set()
    for path in SOURCE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                roots.add(node.module.split(".")[0])
            elif isinstance(node, ast.Import):
                roots.update(alias.name.split(".")[0] for alias in node.names)
    stdlib = {"__future__", "asyncio", "collections", "enum", "threading", "typing"}
    assert roots - stdlib == {"msgspec", "awrl_staleness"}
    importlib.import_module("awrl_staleness")


def test_two_threads_never_share_one_unit() -> None:
    manager = StalenessManager(
        StalenessConfig(max_concurrent=50, consumer_batch_size=50, max_off_policyness=0)
    )
    granted: list[str] = []
    gate = threading.Barrier(4)

    def grab(name: str) -> None:
        gate.wait()
        names = [f"{name}{index}" for index in range(100)]
        granted.extend(key for key in names if manager.try_admit(key))

    threads = [threading.Thread(target=grab, args=(name,)) for name in "abcd"]  # noqa: TID251 - the subject
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == 50
    assert manager.statistics().num_running == 50
