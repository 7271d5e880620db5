"""The checks of the machine: each says what it found and what to do."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest
from webrl.config import WebRLConfig, load_config
from webrl.errors import ConfigError, PreflightError
from webrl.machine_check import (
    check_browser,
    check_disk,
    check_miniwob,
    check_package,
    check_ports,
    check_python,
    check_run_dir,
    check_sglang,
    check_tasks,
    check_tracker,
    checkpoint_bytes,
    preflight,
)


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WebRLConfig:
    monkeypatch.setenv("AWRL_CHROMIUM", str(executable(tmp_path / "bin" / "chromium")))
    return load_config("laptop", [f"run_dir={tmp_path / 'run'}"]).config


def test_a_browser_that_can_not_be_executed_is_refused_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = executable(tmp_path / "shell")
    monkeypatch.setenv("AWRL_CHROMIUM", str(path))
    assert check_browser().detail == str(path)
    monkeypatch.setenv("AWRL_CHROMIUM", str(tmp_path / "missing"))
    check = check_browser()
    assert not check.is_ok
    assert "AWRL_CHROMIUM" in check.detail
    assert "make setup" in check.fix


def test_an_unknown_task_is_named_with_the_nearest_one() -> None:
    assert check_tasks(load_config("laptop").config).is_ok
    check = check_tasks(load_config("laptop", ["tasks=miniwob/click-tset-2"]).config)
    assert not check.is_ok
    assert "'miniwob/click-test-2'" in check.detail


def test_a_task_that_can_not_be_had_as_the_configuration_wants_it_stops_the_run(
    laptop: WebRLConfig, tmp_path: Path
) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text('{"name": "a", "url": "https://a.example/", "goal": "g", "answer": "1"}')
    overrides = [f"run_dir={laptop.run_dir}", f"tasks=tasks:{file}", "env.reset=keep_page"]
    with pytest.raises(PreflightError, match="start_script must be set when reset is 'keep_page'"):
        preflight(load_config("laptop", overrides).config, is_resumed=False)


def test_packages_and_pages_are_found_without_importing_them() -> None:
    assert check_python().is_ok
    assert check_package("pytest").is_ok
    assert check_miniwob().is_ok
    missing = check_package("no-such-distribution")
    assert (missing.is_ok, missing.detail) == (False, "not installed")


def test_a_vision_cache_that_outlives_updates_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not check_package("sglang").is_ok:
        installed = tmp_path / "sglang-0.5.16.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text("Name: sglang\nVersion: 0.5.16\n")
        monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SGLANG_VLM_CACHE_SIZE_MB", "100")
    check = check_sglang()
    assert not check.is_ok
    assert "stale" in check.detail
    monkeypatch.setenv("SGLANG_VLM_CACHE_SIZE_MB", "0")
    assert check_sglang().is_ok


def test_a_taken_port_is_named() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        check = check_ports(port, 1)
    assert not check.is_ok
    assert f"port {port} is taken" in check.detail
    assert "inference.base_port" in check.fix


def test_too_little_disk_room_is_shown_with_both_numbers(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "yet"
    check = check_disk(folder, 10**18)
    assert not check.is_ok
    assert "1000000000.0 GB needed" in check.detail
    assert check_disk(folder, 1).is_ok
    assert not folder.exists()


def test_checkpoints_of_a_given_policy_are_sized_by_its_weights(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"0" * 1000)
    config = load_config("laptop", [f"policy.path={tmp_path}", "checkpoint.keep=2"]).config
    assert checkpoint_bytes(config) == 1000 * 7 * 3


def test_run_dir_is_new_or_resumed(tmp_path: Path) -> None:
    assert check_run_dir(tmp_path / "new", is_resumed=False).is_ok
    assert check_run_dir(tmp_path, is_resumed=False).is_ok
    (tmp_path / "file").write_text("x")
    assert not check_run_dir(tmp_path, is_resumed=False).is_ok
    assert check_run_dir(tmp_path, is_resumed=True).is_ok
    assert not check_run_dir(tmp_path / "file", is_resumed=False).is_ok


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_run_dir_is_refused() -> None:
    check = check_run_dir(Path("/proc/run"), is_resumed=False)
    assert not check.is_ok
    assert "not writable" in check.detail


def test_preflight_passes_and_leaves_nothing_behind(laptop: WebRLConfig) -> None:
    preflight(laptop, is_resumed=False)
    assert not Path(laptop.run_dir).exists()


def test_preflight_reports_every_problem_on_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWRL_CHROMIUM", str(tmp_path / "missing"))
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "metrics.jsonl").write_text("{}")
    overrides = [f"run_dir={run_dir}", "policy.path=Qwen/Qwen3-VL-8B-Instruct", "tasks=click"]
    with pytest.raises(PreflightError) as caught:
        preflight(load_config("laptop", overrides).config, is_resumed=False)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == ["run_dir", "policy", "browser", "tasks"]
    assert "a Hub id is not enough" in lines[1]


def test_fewer_tasks_than_a_batch_takes_stop_the_run(laptop: WebRLConfig, tmp_path: Path) -> None:
    lines = [
        f'{{"task_id": {number}, "task_name": "Look.", "website": "shop.example",'
        ' "evaluator_reference": ["A lamp"]}'
        for number in range(15)
    ]
    file = tmp_path / "train.jsonl"
    overrides = [
        f"run_dir={laptop.run_dir}",
        f"tasks=[{{name='webgym:{file}', split='train'}}, 'miniwob/click-test']",
        *("judge.url=http://127.0.0.1:1/v1", "judge.model=m", "judge.deadline_s=30"),
        *("env.viewport_width=160", "env.viewport_height=224", "pixelstore.disk_dir=x"),
    ]
    config = load_config("laptop", [*overrides, "env.reset=none", "env.num_train_seeds=1"]).config
    file.write_text("\n".join(lines[:14]))
    with pytest.raises(ConfigError, match=r"tasks must hold at least 16 different .*, got 15\."):
        preflight(config, is_resumed=False)
    file.write_text("\n".join(lines))
    preflight(config, is_resumed=False)


def test_a_taken_server_port_stops_the_run(laptop: WebRLConfig, tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        overrides = [f"run_dir={laptop.run_dir}", f"inference.base_port={port}"]
        config = load_config("laptop", overrides).config
        with pytest.raises(PreflightError, match=f"port {port} is taken"):
            preflight(config, is_resumed=False)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("inference.backend=sglang", r"pip install 'webrl\[sglang\]'"),
        ("cluster.n_gpus_per_node=99", "n_gpus_per_node is 99, torch sees"),
        ("cluster.n_nodes=2", "cluster.n_nodes is 2, this is one. Start Ray on every node"),
        ("policy.path=nowhere", "nowhere is not a folder"),
        ("tasks=miniwob/click-tset-2", "Did you mean 'miniwob/click-test-2'"),
    ],
)
def test_what_is_missing_is_found_before_anything_starts(
    setting: str, message: str, laptop: WebRLConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "sglang" in setting and check_package("sglang").is_ok:
        pytest.skip("sglang is installed here")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = load_config("laptop", [f"run_dir={laptop.run_dir}", setting]).config
    with pytest.raises(PreflightError, match=message) as caught:
        preflight(config, is_resumed=False)
    assert len(str(caught.value).splitlines()) == 1
    assert "?." not in str(caught.value)


def test_gpus_of_a_cluster_that_is_joined_are_counted_there(
    laptop: WebRLConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    config = load_config("laptop", [f"run_dir={laptop.run_dir}", "cluster.n_nodes=2"]).config
    preflight(config, is_resumed=False)


def test_wandb_without_a_key_is_refused_unless_it_is_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "wandb-0.20.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Name: wandb\nVersion: 0.20.0\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "keys"))
    assert "WANDB_API_KEY" in check_tracker("wandb").fix
    (tmp_path / "keys").write_text("machine api.wandb.ai login user password secret")
    assert check_tracker("wandb").is_ok
    (tmp_path / "keys").write_text("machine elsewhere login user password secret")
    assert not check_tracker("wandb").is_ok
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert check_tracker("wandb").is_ok


def test_a_tracker_that_is_not_installed_is_refused(laptop: WebRLConfig) -> None:
    if check_package("trackio").is_ok:
        pytest.skip("trackio is installed here")
    overrides = [f"run_dir={laptop.run_dir}", "logging.tracker=trackio"]
    with pytest.raises(PreflightError, match=r"pip install 'webrl\[trackio\]'"):
        preflight(load_config("laptop", overrides).config, is_resumed=False)
