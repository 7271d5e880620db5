"""A key that decides nothing is a knob that does nothing: none may exist.

Every key is set to another valid value, and what the parts of a run are made from has to change.
What acts where the run is put together is listed: there the whole path of the key has to be read,
from the section that it stands in.
"""

from __future__ import annotations

import ast
import functools
import json
import typing
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
import webrl
from webrl.config import WebRLConfig, all_keys, config_warnings, load_config
from webrl.config.summary import IDLE_KEYS, IdleKeys
from webrl.errors import ConfigError, TaskError
from webrl.launch import component_configs, run_tasks
from webrl.policy import PolicyProcessor

SOURCES = Path(webrl.__file__).parent
LABELS = ("easy", "medium", "hard", "model.visual")
TASKS = [
    {
        "task_id": number,
        "task_name": "Look.",
        "website": "model.visual" if number % 2 else "shop.example",
        "evaluator_reference": ["A lamp"],
        "difficulty": LABELS[number % 4],
        "domain": LABELS[number % 4],
        "subdomain": LABELS[number % 4],
    }
    for number in range(12)
]
"""One label is what another value of a list of texts is."""
BASE = (
    "allocation_mode=embedded[rollout]:d2|fsdp[actor]:d2",
    "cluster.n_inference_servers=2",
    "cluster.n_gpus_per_node=4",
    "judge.url=http://127.0.0.1:1/v1",
    "judge.model=m",
    "judge.deadline_s=5",
    "policy.init.seed=1",
    "env.viewport_width=160",
    "env.viewport_height=224",
    "env.episode_timeout_s=60",
    "env.num_train_seeds=1000",
    "env.reset=reload",
    "env.proxy=http://proxy.example:3128",
    "env.browsers=['ws://127.0.0.1:9222']",
    "env.recycle_above_bytes=4294967296",
    "inference.context_length=16384",
    "pixelstore.disk_dir=disk",
    "pixelstore.max_bytes=4294967296",
    "test_rollout.enabled=true",
    "actor.num_threads=1",
    "actor.gradient_checkpointing=true",
    "actor.behav_imp_weight_cap=5",
    "actor.optimizer.schedule=linear",
    "actor.optimizer.warmup_fraction=0.5",
)
"""A run in which every part exists, so that every key has something to act on."""
MODES = {
    "everything": (),
    "sglang": ("inference.backend=sglang",),
    "synchronous": ("cluster.n_inference_servers=0",),
    "plain": (
        "cluster.n_gpus_per_node=0",
        "allocation_mode=embedded[rollout]:d2+fsdp[actor]:d2",
        "weight_update_mode=disk",
        "policy.init.num_updates=0",
        "pixelstore.disk_dir=none",
        "env.screenshot_format=png",
        "env.proxy=none",
        "env.browsers=[]",
        "judge.max_answer_tokens=none",
        "test_rollout.enabled=false",
        "actor.use_decoupled_loss=false",
        "actor.behav_imp_weight_cap=none",
        "actor.gradient_checkpointing=false",
        "actor.optimizer.schedule=constant",
    ),
    "given": ("policy.path=/p", "actor.loss=cispo", "env.proxy=none"),
}
"""Kinds of runs: in each of them other keys decide nothing."""
TOGETHER = {
    "allocation_mode": (
        "allocation_mode=embedded[rollout]:d1|fsdp[actor]:d1",
        "cluster.n_inference_servers=1",
    ),
    "cluster.n_inference_servers": ("cluster.n_inference_servers=0",),
    "actor.use_decoupled_loss": (
        "actor.use_decoupled_loss=false",
        "actor.recompute_logprob=false",
        "actor.behav_imp_weight_cap=none",
    ),
    "env.viewport_width": ("env.viewport_width=320", "env.viewport_height=224"),
    "cluster.n_gpus_per_node": ("cluster.n_gpus_per_node=0",),
    "env.reset": ("env.reset=new_context",),
    "env.cpus_per_slot": ("env.cpus_per_slot=0.5",),
    "env.node_label": ("env.node_label=browsers=true",),
    "inference.backend": ("inference.backend=sglang",),
    "actor.prox_logp_method": ("actor.prox_logp_method=metrics",),
}
"""Keys that change only together with others, or whose first other value is refused."""
REFUSED = {
    "scheduler.type": "there is one scheduler; published configurations name it",
}
"""Keys whose every other value is refused in every mode, and why they exist."""
ELSEWHERE = frozenset(
    {
        "actor.group_advantage_norm",
        "actor.step_adv_const_length",
        "checkpoint.keep",
        "checkpoint.save_every",
        "checkpoint.save_every_s",
        "cluster.gpu_memory_bytes",
        "cluster.n_nodes",
        "env.num_train_seeds",
        "env.slots_per_worker",
        "gconfig.n_samples",
        "logging.level",
        "logging.sample_every",
        "logging.tracker",
        "policy.init.batch_size",
        "policy.init.lr",
        "policy.init.num_updates",
        "policy.init.seed",
        "policy.path",
        "recover.max_restarts",
        "rollout.max_useless_groups",
        "run_dir",
        "sites.expiry_s",
        "test_rollout.deadline_s",
        "test_rollout.every_task",
        "test_rollout.interval_s",
        "test_rollout.late_episodes",
        "test_rollout.max_concurrent",
        "test_rollout.n_samples",
        "test_rollout.num_final_seeds",
        "test_rollout.num_seeds",
        "test_rollout.subset_seed",
        "test_rollout.temperature",
        "time_limit_s",
    }
)
"""Keys that act where a run is put together: their whole path is read there."""
ASSEMBLY = ("launch/*.py", "run/*.py", "evaluation/*.py", "memory_budget.py")


@functools.cache
def load(settings: tuple[str, ...]) -> WebRLConfig:
    return load_config("laptop", settings).config


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Return the settings of the run that every other value is compared with."""
    file = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    file.write_text("\n".join([*map(json.dumps, TASKS), *["no task"] * 20]))
    own = f"{{name='webgym:{file}', max_bad_share=1.0, num_tasks=11, weight=2.0}}"
    return (*BASE, f"tasks=[{own}, {{name='miniwob/click-test', weight=1.0}}]")


@functools.cache
def components(config: WebRLConfig) -> list[object]:
    """Return what the parts of a run are made from."""
    servers = component_configs.server_spec(config, str(SOURCES))
    processor = cast("PolicyProcessor", SimpleNamespace(masked_token_ids=()))
    worker = component_configs.worker_spec(
        config,
        servers,
        run_tasks.train_tasks(config),
        num_slots=1,
        temperature=1.0,
        is_synchronous=config.is_synchronous,
    )
    controller = component_configs.controller_config(config)
    publisher = component_configs.publisher_config(
        config, servers, Path("weights"), host="h", run_id="r"
    )
    return [
        servers,
        worker,
        publisher.snapshots is None,
        component_configs.role_specs(config, 16.0),
        (
            controller.max_fault_share,
            controller.outage_patience_s,
            config.rollout.consumer_batch_size,
        )
        if config.is_synchronous
        else (component_configs.staleness_config(config), controller),
        run_tasks.test_tasks(config),
        run_tasks.train_tasks(config),
        component_configs.task_stream(config).group(3),
        component_configs.task_stream(config).fingerprint,
        component_configs.engine_spec(config, servers, processor),
        component_configs.rank_environment(config),
        component_configs.pixelstore_config(config),
        publisher.backend,
    ]


def leaf_hint(key: str) -> Any:
    """Return the type of a key, whatever list or section it stands in."""
    hint: Any = WebRLConfig
    for name in key.replace("[]", "").split("."):
        inner = typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint
        hint = typing.get_type_hints(inner)[name]
    return hint


def other_values(hint: Any, value: object) -> Iterator[str]:
    """Yield values of the type as a command line spells them; not all need be allowed."""
    kinds = [part for part in typing.get_args(hint) if part is not type(None)]
    if typing.get_origin(hint) is Literal:
        yield from (repr(choice) for choice in typing.get_args(hint) if choice != value)
    elif typing.get_origin(hint) is tuple:
        yield '["model.visual"]'
        yield '["NCCL_DEBUG=INFO"]'
        yield '["ws://127.0.0.1:9223"]'
    elif kinds:
        yield from other_values(kinds[0], value)
    elif hint is bool:
        yield str(not value).lower()
    elif hint in (int, float):
        number = cast("float", value or 0)
        yield from (str(hint(other)) for other in (number + 1, 2 * number, number / 2, 0.5, 2048))
    else:
        yield '"JUDGE_KEY"'
        yield '"https://other.example/v1"'
        yield '"https://other.example"'


def changed(base: tuple[str, ...], key: str) -> WebRLConfig | None:
    """Return a run that differs in one key, None when every other value is refused."""
    if key in TOGETHER:
        try:
            return load((*base, *TOGETHER[key]))
        except ConfigError:
            return None
    value: Any = load(base)
    for name in key.replace("tasks[].", "tasks.").split("."):
        value = value[0] if isinstance(value, tuple) else value
        value = getattr(value, name)
    for text in other_values(leaf_hint(key), value):
        settings = (*base, f"{key}={text}")
        if key.startswith("tasks[]."):
            leaf, before = key.split(".")[1], base[-1]
            settings = (*base[:-1], before.replace("{", f"{{{leaf}={text}, ", 1))
            if f"{leaf}=" in before:
                settings = (*base[:-1], _replaced(before, leaf, text))
        try:
            config = load(settings)
        except ConfigError:
            continue
        if config != load(base):
            return config
    return None


def _replaced(tasks: str, leaf: str, text: str) -> str:
    """Return the list of tasks with another value of the first one's key."""
    start = tasks.index(f"{leaf}=") + len(leaf) + 1
    end = min(place for mark in (",", "}") if (place := tasks.find(mark, start)) > 0)
    if leaf == "name":
        return f"{tasks[:start]}'miniwob/click-button'{tasks[end:]}".replace(", num_tasks=11", "")
    return tasks[:start] + text + tasks[end:]


def verdict(base: tuple[str, ...], key: str) -> Literal["refused", "acts", "warned", "silent"]:
    """Return what becomes of another value of a key."""
    other = changed(base, key)
    if other is None or other == load(base):
        return "refused"
    try:
        if components(other) != components(load(base)):
            return "acts"
    except TaskError:
        return "acts"
    said = [text.partition(" ")[0] for text in config_warnings(other) if "no effect" in text]
    return "warned" if any(key.replace("[]", "").startswith(word) for word in said) else "silent"


@pytest.fixture(scope="module")
def verdicts(base: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Return the verdict on every key, by the kind of run."""
    keys = sorted(set(all_keys()) - ELSEWHERE)
    modes = {name: (*base[:-1], *settings, base[-1]) for name, settings in MODES.items()}
    return {name: {key: verdict(settings, key) for key in keys} for name, settings in modes.items()}


@pytest.mark.parametrize("mode", MODES)
def test_another_value_makes_other_parts_or_is_refused_or_warned_about(
    verdicts: dict[str, dict[str, str]], mode: str
) -> None:
    assert [key for key, found in verdicts[mode].items() if found == "silent"] == []


def test_every_key_acts_in_some_kind_of_run(verdicts: dict[str, dict[str, str]]) -> None:
    acting = {key for found in verdicts.values() for key in found if found[key] == "acts"}
    assert set(all_keys()) - ELSEWHERE - acting == REFUSED.keys()


IDLE = {
    "policy.init": "policy.init.lr",
    "judge": "judge.max_retries",
    "step_limits": "step_limits.easy",
}
"""A key of each section that is idle as a whole."""


@pytest.mark.parametrize("row", IDLE_KEYS, ids=lambda row: row.keys[0])
def test_a_key_that_was_set_in_vain_is_warned_about(base: tuple[str, ...], row: IdleKeys) -> None:
    tasks = "tasks=['miniwob/click-test']"
    modes = [(*base[:-1], *settings, base[-1]) for settings in MODES.values()]
    modes.append((*base[:-1], *MODES["plain"], tasks))
    settings = next(settings for settings in modes if row.is_idle(load(settings)))
    for key in row.keys:
        other = changed(settings, IDLE.get(key, key))
        assert other is not None
        assert f"{key} has no effect: {row.reason}." in config_warnings(other)


def paths_read(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted path of every key that a module reads from the run's configuration.

    A name that stands for a section (`actor = config.actor`) is followed within its module.
    """
    names = {"config": "", "self._config": "", "loaded.config": "", "one": ""}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            pairs = zip(_parts(node.targets[0]), _parts(node.value), strict=False)
            names |= {
                ast.unparse(target): path
                for target, value in pairs
                if (path := _path_of(value, names)) is not None
            }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (path := _path_of(node, names)):
            yield path


def _parts(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _path_of(node: ast.expr, names: dict[str, str]) -> str | None:
    """Return the path below the configuration that an expression names, None for others."""
    if ast.unparse(node) in names:
        return names[ast.unparse(node)]
    if not isinstance(node, ast.Attribute):
        return None
    above = _path_of(node.value, names)
    return None if above is None else f"{above}.{node.attr}".lstrip(".")


def test_what_acts_where_a_run_is_put_together_is_read_there_by_its_whole_path() -> None:
    files = [file for pattern in ASSEMBLY for file in SOURCES.glob(pattern)]
    read = {path for file in files for path in paths_read(ast.parse(file.read_text()))}
    assert ELSEWHERE - read == set()


def test_a_key_of_the_same_name_in_another_section_is_another_key() -> None:
    source = "actor, lr = self._config.actor, 1\nuse(actor.dtype, config.policy.init.lr, lr)"
    assert {"actor.dtype", "policy.init.lr"} <= set(paths_read(ast.parse(source)))
    assert "actor.optimizer.lr" not in set(paths_read(ast.parse(source)))


def test_sglang_is_started_with_the_limits_of_the_configuration() -> None:
    words = load_config("webgym_48_16").config.inference.arguments("sglang")
    assert " ".join(words) == (
        "--context-length 16384 --max-running-requests 48 --mem-fraction-static 0.75"
    )


ASSEMBLERS = {
    "launch/component_configs.py",
    "launch/run_tasks.py",
    "launch/system.py",
    "run/run.py",
    "run/compare.py",
    "run/first_policy.py",
    "run/weight_updates.py",
    "evaluation/manager.py",
    "evaluation/run_evaluation.py",
    "evaluation/standalone.py",
}
"""What puts a run together."""


def test_who_works_in_a_run_never_sees_its_configuration() -> None:
    folders = (
        "cluster",
        "servers",
        "rollout",
        "training",
        "evaluation",
        "records",
        "launch",
        "run",
    )
    seeing = {
        f"{folder}/{file.name}"
        for folder in folders
        for file in SOURCES.joinpath(folder).rglob("*.py")
        if "WebRLConfig" in file.read_text(encoding="utf-8")
    }
    assert seeing == ASSEMBLERS
