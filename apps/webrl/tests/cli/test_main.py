"""The command line: what it offers, what it refuses, and that nobody sees a traceback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from webrl.cli import main
from webrl.cli.main import build_parser
from webrl.cli.train import find_latest_run
from webrl.config import load_config, packaged_configs, to_toml


def commands() -> set[str]:
    usage = build_parser().format_help().split("positional arguments:")[1]
    lines = [line for line in usage.splitlines() if re.match(r"    [a-z]", line)]
    return {line.split()[0] for line in lines}


def test_only_commands_that_work_are_offered() -> None:
    assert commands() >= {"train", "tasks", "configs", "init-policy", "doctor"}
    for name in commands():
        with pytest.raises(SystemExit) as caught:
            main([name, "--help"])
        assert caught.value.code == 0


def test_nothing_heavy_is_imported_before_a_command_runs() -> None:
    code = (
        "import sys, webrl.cli.main\n"
        "assert not {'torch', 'transformers', 'ray', 'playwright'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_configs_lists_every_packaged_one_with_its_purpose(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["configs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(packaged_configs())
    assert all(len(line.split()) > 3 for line in lines)


def test_configs_prints_one_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["configs", "laptop"]) == 0
    assert capsys.readouterr().out == packaged_configs()["laptop"]


@pytest.mark.parametrize("name", sorted(packaged_configs()))
def test_a_dry_run_prints_the_resolved_config_and_the_plan(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--config", name, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert to_toml(load_config(name).config) in out
    assert "episodes in flight at most" in out


def test_a_dry_run_is_a_file_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--config", "laptop", "--dry-run", "seed=9"]) == 0
    file = tmp_path / "mine.toml"
    file.write_text(capsys.readouterr().out)
    assert load_config(str(file)).config == load_config("laptop", ["seed=9"]).config


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("tasks=miniwob/click-tset-2", "Did you mean 'miniwob/click-test-2'?"),
        ("policy.path=nowhere", "policy: nowhere is not a folder with a config.json."),
        ("env.num_train_seeds=3", "tasks must hold at least 16 different tasks"),
    ],
)
def test_a_dry_run_fails_for_what_its_settings_name_and_is_not_there(
    setting: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--config", "laptop", "--dry-run", setting]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("webrl: ")
    assert message in captured.err
    assert "episodes in flight at most" in captured.out


def test_a_dry_run_says_what_another_machine_may_have(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert main(["train", "--config", "webgym_48_16", "--dry-run"]) == 0
    missing = [line.split(": ")[1] for line in capsys.readouterr().err.splitlines()]
    assert {"policy", "cluster", "tasks"} <= set(missing)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "laptop",
            (
                "rollout       embedded     1 CPU process    devices 0",
                "actor         fsdp         1 CPU process    devices 1",
                "test-rollout  embedded     1 CPU process    devices 2",
                "(eta + 1) * B = (2 + 1) * 128 = 384 episodes in flight at most",
                "weight updates: xccl, broadcast over gloo",
            ),
        ),
        (
            "one_gpu",
            (
                "rollout       sglang       1 GPU            devices 0",
                "actor         fsdp         1 GPU            devices 0",
                "total                      1 GPU of 1 in the cluster",
                "servers and trainer share devices and slow each other",
            ),
        ),
        (
            "one_node_8gpu",
            (
                "rollout       sglang       5 GPUs           devices 0-4",
                "actor         fsdp         2 GPUs           devices 5-6",
                "test-rollout  sglang       1 GPU            devices 7",
                "total                      8 GPUs of 8 in the cluster",
            ),
        ),
        (
            "webgym_48_16",
            (
                'path = "checkpoints/Qwen3-VL-8B-Instruct"',
                "n_samples = 8",
                "batch B = 128 episodes = 16 groups x 8",
                "max_head_offpolicyness = 2",
                "eps_clip = 0.2",
                "c_clip = 3.0",
                "ppo_n_minibatches = 2",
                "ppo_n_epochs = 3",
                "lr = 5e-06",
                "kl_ctl = 0.0",
                "step_adv_const_length = 10",
                "rollout       sglang      48 GPUs           devices 0-47",
                "actor         fsdp        16 GPUs           devices 48-63",
                "rollout.max_concurrent_rollouts = 1280 can never bind",
            ),
        ),
    ],
)
def test_a_dry_run_of_each_packaged_config_shows_roles_and_hyper_parameters(
    name: str, lines: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--config", name, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert [line for line in lines if line not in out] == []


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("rollout.eta=1", "rollout.eta is not a key."),
        ("actor.optimizer.lr=fast", "actor.optimizer.lr must be a number, got 'fast'."),
        ("rollout.max_head_offpolicyness=-1", "must be >= 0, got -1. Use 0 for synchronous RL."),
        ("allocation_mode=embedded:d1+fsdp:d3", "must be divisible by the actor's d in"),
        ("cluster.n_inference_servers=2", "must equal the rollout's d in allocation_mode (1)"),
        ("env.num_train_seeds=15", "must hold at least 16 different tasks"),
        ("pixelstore.max_bytes=1048576", "must hold (eta + 1) * B = 384 episodes"),
    ],
)
def test_bad_input_is_one_message_before_any_process_starts(
    setting: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    before = psutil.Process().children()
    assert main(["train", "--config", "laptop", f"run_dir={run_dir}", setting]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line
    assert setting.partition("=")[0].rpartition(".")[2] in line or "consumer_batch_size" in line
    assert psutil.Process().children() == before
    assert not run_dir.exists()


def test_tasks_lists_names_that_a_config_can_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "click-test"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert "miniwob/click-test-2" in names
    assert main(["tasks", "no such task"]) == 2


def test_tasks_checks_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(
        '{"task_id": 1, "task_name": "Look.", "website": "shop.example",'
        ' "evaluator_reference": ["A lamp"]}'
    )
    assert main(["tasks", f"webgym:{file}"]) == 0
    assert "webgym/1" in capsys.readouterr().out
    file.write_text("{}")
    assert main(["tasks", f"webgym:{file}"]) == 2


def test_settings_may_stand_behind_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "seed=5", "--config", "laptop", "total_steps=7", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "seed = 5" in shown
    assert "total_steps = 7" in shown


def test_a_word_that_is_no_setting_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["train", "seed=5", "--config", "laptop", "total_steps", "--dry-run"])


def test_a_dry_run_shows_what_overrides_decide(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--config", "laptop", "--dry-run", "rollout.max_head_offpolicyness=3"]
    assert main(words) == 0
    assert "(3 + 1) * 128 = 512 episodes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "lap_top"], "webrl: --config must be a packaged name or a TOML file"),
        (["--config", "laptop", "sede=1"], "webrl: sede is not a key. Did you mean 'seed'?"),
        (["--config", "laptop", "allocation_mode=sglang.d1"], "Write backend:dims with a ':'"),
        (["--resume", "no/such/run"], "webrl: --resume must name a run's folder"),
        (["--resume"], "webrl: --resume must find a run below 'runs', got none."),
        (["--resume", "seed=3"], "webrl: --resume must find a run below 'runs', got none."),
    ],
)
def test_a_user_error_is_a_message_and_exit_code_two(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["trian"], "Did you mean 'train'?"),
        (["train", "--config", "laptop", "--dryrun"], "Did you mean '--dry-run'?"),
        (["train", "--confg", "laptop"], "Did you mean '--config'?"),
        (["train", "--config", "laptop", "--total-steps=5"], "have no dashes: total_steps=value"),
        (["tasks", "--jsn"], "Did you mean '--json'?"),
        (["eval"], "the following arguments are required: policy\n"),
    ],
)
def test_a_mistyped_word_is_answered_with_the_right_one(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert hint in capsys.readouterr().err


def test_no_word_at_all_is_answered_with_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "init-policy" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["configs"], ["configs", "laptop"], ["tasks", "click-test"]])
def test_json_is_printed_or_written(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new" / "out.json"
    assert main([words[0], "--json", *words[1:]]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert main([*words, "--json", str(file)]) == 0
    assert json.loads(file.read_text()) == printed
    assert capsys.readouterr().out == ""
    assert main([*words, "--json", str(tmp_path / "new" / "out.json" / "x.json")]) == 2
    assert "--json must name a file that can be written" in capsys.readouterr().err


def test_several_problems_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--config", "laptop", "sede=1", "actor.c_clip=0"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_train_needs_a_config_or_a_run_to_resume(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["train"])
    assert caught.value.code == 2
    assert "--config --resume" in capsys.readouterr().err


def test_a_used_run_folder_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    assert main(["train", "--config", "laptop", f"run_dir={tmp_path}"]) == 2
    assert f"run_dir: {tmp_path} is already used. Continue it with --resume" in (
        capsys.readouterr().err
    )
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_resume_takes_the_run_written_last(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").write_text(f"# {name}")
    import os

    os.utime(tmp_path / "first" / "config.toml", ns=(2_000, 2_000))
    os.utime(tmp_path / "second" / "config.toml", ns=(1_000, 1_000))
    assert find_latest_run(tmp_path) == tmp_path / "first"


def test_a_resumed_dry_run_reads_the_folder_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_config("laptop", ["seed=5"]).config
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert main(["train", "--resume", str(tmp_path), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "seed = 5" in out
    assert f'run_dir = "{tmp_path}"' in out


def test_init_policy_does_not_overwrite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert main(["init-policy", str(tmp_path)]) == 2
    assert "out_dir must be a new folder" in capsys.readouterr().err


@pytest.mark.slow
def test_init_policy_refuses_a_wrong_count_and_saves_a_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out_dir = tmp_path / "policy"
    assert main(["init-policy", str(out_dir), "--updates", "-1"]) == 2
    assert "num_updates must be >= 0, got -1" in capsys.readouterr().err
    assert main(["init-policy", str(out_dir), "--updates", "0"]) == 0
    assert (out_dir / "config.json").is_file()
    assert list(out_dir.glob("*.safetensors"))


@pytest.mark.parametrize("address", [None, "auto"])
def test_local_workers_are_not_started_through_uv(
    monkeypatch: pytest.MonkeyPatch, address: str | None
) -> None:
    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "")
    monkeypatch.delenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address:
        monkeypatch.setenv("RAY_ADDRESS", address)
    assert main(["configs"]) == 0
    assert os.environ.get("RAY_ENABLE_UV_RUN_RUNTIME_ENV") == (None if address else "0")
