"""Loading: packaged names, files, overrides, and every kind of bad input."""

from __future__ import annotations

import dataclasses
import pickle
import tempfile
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webrl.config import all_keys, load_config, packaged_configs, resolve_run_dir, to_toml
from webrl.config.spelling import ALIASES
from webrl.errors import ConfigError


def problem_of(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config("laptop", overrides)
    return str(caught.value)


@pytest.mark.parametrize("name", sorted(packaged_configs()))
def test_every_packaged_config_loads_and_its_dump_loads_to_the_same(
    name: str, tmp_path: Path
) -> None:
    config = load_config(name).config
    file = tmp_path / "config.toml"
    file.write_text(to_toml(config))
    assert load_config(str(file)).config == config


@settings(deadline=None)
@given(
    text=st.text(min_size=1).filter(lambda text: text.strip() not in ("", "none", "null")),
    lr=st.floats(min_value=1e-300, max_value=1e300),
    seed=st.integers(0, 2**62),
)
def test_any_value_survives_being_written_and_read(text: str, lr: float, seed: int) -> None:
    config = load_config("laptop").config
    config = dataclasses.replace(
        config,
        run_dir=text,
        seed=seed,
        pixelstore=dataclasses.replace(config.pixelstore, disk_dir="x" + text),
        actor=dataclasses.replace(
            config.actor, optimizer=dataclasses.replace(config.actor.optimizer, lr=lr)
        ),
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.toml"
        file.write_text(to_toml(config), encoding="utf-8")
        assert load_config(str(file)).config == config


def test_overrides_are_typed_and_the_last_one_wins() -> None:
    config = load_config(
        "laptop",
        [
            "seed=1",
            "seed=7",
            "actor.optimizer.lr=1e-5",
            "env.action_timeout_s=3",
            "actor.behav_imp_weight_cap=5.0",
            "time_limit_s=none",
            "run_dir=runs/a b=c",
            "actor.dtype=bfloat16",
            "inference.backend=sglang",
            "test_rollout.enabled=false",
        ],
    ).config
    assert (config.seed, config.actor.optimizer.lr, config.env.action_timeout_s) == (7, 1e-5, 3.0)
    assert (config.actor.behav_imp_weight_cap, config.time_limit_s) == (5.0, None)
    assert (config.run_dir, config.actor.dtype) == ("runs/a b=c", "bfloat16")
    assert config.test_rollout.enabled is False


def test_a_list_of_texts_needs_no_quotes_and_survives_being_written(tmp_path: Path) -> None:
    config = load_config("laptop", ["actor.frozen_modules=model.visual, lm_head"]).config
    assert config.actor.frozen_modules == ("model.visual", "lm_head")
    file = tmp_path / "config.toml"
    file.write_text(to_toml(config))
    assert load_config(str(file)).config == config


def test_tasks_can_be_named_on_the_command_line() -> None:
    short = load_config("laptop", ["tasks=click-test, click-button"]).config
    assert [task.name for task in short.tasks] == ["click-test", "click-button"]
    full = load_config("laptop", ['tasks=[{name = "a", max_steps = 3}, "b"]']).config
    assert [(task.name, task.max_steps) for task in full.tasks] == [("a", 3), ("b", None)]


@pytest.mark.requirement("ray-scheduler")
@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "rollout.max_head_offpolicynes=1",
            "rollout.max_head_offpolicynes is not a key. "
            "Did you mean 'rollout.max_head_offpolicyness'?",
        ),
        ("eps_clip=0.2", "eps_clip is not a key. Did you mean 'actor.eps_clip'?"),
        ("rollout.eps_clip=0.2", "Did you mean 'actor.eps_clip'?"),
        ("lr=0.2", "Did you mean 'policy.init.lr' or 'actor.optimizer.lr'?"),
        ("rollout.eta=1", "Did you mean 'rollout.max_head_offpolicyness'?"),
        ("model=x", "Did you mean 'policy.path' or 'judge.model'?"),
        ("batch_size=8", "Did you mean 'rollout.consumer_batch_size' or 'policy.init.batch_size'?"),
        ("actor.learning-rate=1", "Did you mean 'actor.optimizer.lr'?"),
        ("Group_Size=8", "Did you mean 'gconfig.n_samples'?"),
        ("tasks=[{name='a', steps=3}]", "Did you mean 'tasks[].max_steps'?"),
        ("rolout.x=1", "rolout is not a key. Did you mean 'rollout'?"),
        ("zzz=1", "zzz is not a key. All keys are listed in docs/configuration.md."),
        ("tasks=[{name='a', maxsteps=3}]", "tasks[0].maxsteps is not a key. Did you mean"),
        ("seed=1.5", "seed must be a whole number, got 1.5."),
        ("seed=true", "seed must be a whole number, got true."),
        ("seed=x", "seed must be a whole number, got 'x'."),
        ("seed.x=1", "seed must be a whole number, got a table."),
        ("seed=-1", "seed must be >= 0, got -1."),
        ("actor=1", "actor must be a table, got 1."),
        ("actor.eps_clip=yes", "actor.eps_clip must be a number, got 'yes'."),
        ("actor.use_decoupled_loss=1", "actor.use_decoupled_loss must be true or false, got 1."),
        ("actor.dtype=fp8", "actor.dtype must be one of 'float32', 'bfloat16', got 'fp8'."),
        ("actor.c_clip=1", "actor.c_clip must be > 1, got 1.0."),
        ("actor.optimizer.lr=nan", "actor.optimizer.lr must be > 0, got nan."),
        ("scheduler.type=slurm", "scheduler.type must be one of 'ray', got 'slurm'."),
        ("tasks=3", "tasks must be a list, got 3."),
        ("actor.frozen_modules=3", "actor.frozen_modules must be a list of texts, got 3."),
        (
            "actor.env_vars=[' =hush']",
            "actor.env_vars must be texts written NAME=value, got 'another one of 6 characters'.",
        ),
        (
            "inference.env_vars=OMP_NUM_THREADS=2",
            "inference.env_vars must be without variables that the run sets, got 'OMP_NUM_THREADS'.",
        ),
        (
            "actor.env_vars=WANDB_API_KEY=hush",
            "must be without secrets, since configurations are printed and kept, got 'WANDB_API_KEY'",
        ),
        ("actor.env_vars=A=1, A=2", "actor.env_vars must be one entry for each name, got 'A'."),
        ("tasks=[]", "tasks must name at least one task, got none."),
        ("tasks=a,a", "tasks must name each task once, got 'a' twice."),
        ("tasks=[{max_steps=3}]", "tasks[0].name must be set"),
        ("seed", "argument must be key=value, got 'seed'."),
        (".seed=1", "argument must be key=value"),
        ("run_dir=\udcff", "argument must be text in UTF-8, got 'run_dir=\\udcff'."),
        ("rollout.max_head_offpolicyness=-1", "must be >= 0, got -1. Use 0 for synchronous RL."),
    ],
)
def test_bad_input_is_one_message_with_key_value_rule_and_fix(override: str, message: str) -> None:
    text = problem_of(override)
    assert message in text
    assert len(text.splitlines()) == 1


def test_every_word_of_the_field_leads_to_a_key() -> None:
    assert {*ALIASES.values()} - {*all_keys(), "tasks"} == set()
    spelled = {key.rsplit(".", 1)[-1] for key in all_keys() if "." not in key}
    assert not spelled & set(ALIASES), "a key of the top needs no other word"


def test_all_problems_are_reported_together() -> None:
    text = problem_of("sede=1", "actor.c_clip=0.5", "env.num_workers=0", "seed=x")
    keys = {line.split()[0] for line in text.splitlines()}
    assert keys == {"sede", "actor.c_clip", "env.num_workers", "seed"}


def test_a_misspelt_dual_clip_constant_is_refused() -> None:
    assert "Did you mean 'actor.c_clip'?" in problem_of("actor.c_clp=3.0")


def test_an_allocation_that_does_not_parse_keeps_its_caret_beside_other_problems() -> None:
    text = problem_of("allocation_mode=sglang.d1+fsdp.d1", "seed=-1", "actor.ppo_n_epochs=1")
    first, second, *drawn = text.splitlines()
    assert first == "seed must be >= 0, got -1. Any number from 0."
    assert second.startswith("allocation_mode expects ':' before the dims, got '.'.")
    assert drawn == ["  sglang.d1+fsdp.d1", "        ^"]


def test_an_unknown_config_names_the_nearest_packaged_one() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'laptop'"):
        load_config("lap_top")
    with pytest.raises(ConfigError, match="Packaged: laptop, one_gpu"):
        load_config("nothing/like/it.toml")


def test_a_file_that_is_not_toml_is_refused_with_the_place(tmp_path: Path) -> None:
    file = tmp_path / "broken.toml"
    file.write_text("seed = \n")
    with pytest.raises(ConfigError, match=r"valid TOML.*line 1"):
        load_config(str(file))
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="readable TOML"):
        load_config(str(file))
    with pytest.raises(ConfigError, match="readable TOML"):
        load_config(str(tmp_path))


def test_a_config_without_required_keys_names_them(tmp_path: Path) -> None:
    file = tmp_path / "empty.toml"
    file.write_text("seed = 1\n")
    with pytest.raises(ConfigError) as caught:
        load_config(str(file))
    assert [problem.key for problem in caught.value.problems] == ["allocation_mode", "tasks"]


def test_run_dir_placeholders_are_filled_in() -> None:
    started = datetime(2026, 1, 2, 3, 4, 5)
    loaded = resolve_run_dir(load_config("laptop"), started)
    assert loaded.config.run_dir == "runs/laptop-20260102-030405"
    with pytest.raises(ConfigError, match="no placeholder but"):
        resolve_run_dir(load_config("laptop", ["run_dir=runs/{user}"]), started)


def test_a_config_error_survives_pickling() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("laptop", ["seed=x", "sede=1"])
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert copy.problems == caught.value.problems
