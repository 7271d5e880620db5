"""The right spelling of a mistyped key."""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Sequence

from webrl.config.rules import Section, section_type
from webrl.config.run import WebRLConfig
from webrl.errors import Problem

ALIASES: dict[str, str] = {
    "algorithm": "actor.loss",
    "batch_size": "rollout.consumer_batch_size",
    "beta": "actor.kl_ctl",
    "checkpoint": "policy.path",
    "clip": "actor.eps_clip",
    "clip_range": "actor.eps_clip",
    "clip_ratio": "actor.eps_clip",
    "concurrency": "rollout.max_concurrent_rollouts",
    "entropy": "actor.entropy_coef",
    "env": "tasks",
    "epochs": "actor.ppo_n_epochs",
    "epsilon": "actor.eps_clip",
    "eta": "rollout.max_head_offpolicyness",
    "eval": "test_rollout.enabled",
    "gpus": "cluster.n_gpus_per_node",
    "grad_clip": "actor.optimizer.max_grad_norm",
    "group_size": "gconfig.n_samples",
    "history_window": "agent.images",
    "kl": "actor.kl_ctl",
    "kl_beta": "actor.kl_ctl",
    "kl_coef": "actor.kl_ctl",
    "learning_rate": "actor.optimizer.lr",
    "log_level": "logging.level",
    "lr_scheduler": "actor.optimizer.schedule",
    "max_length": "inference.context_length",
    "max_new_tokens": "gconfig.max_new_tokens",
    "max_staleness": "rollout.max_head_offpolicyness",
    "max_tokens": "gconfig.max_new_tokens",
    "mini_batches": "actor.ppo_n_minibatches",
    "minibatches": "actor.ppo_n_minibatches",
    "model": "policy.path",
    "model_name": "policy.path",
    "model_path": "policy.path",
    "nodes": "cluster.n_nodes",
    "num_generations": "gconfig.n_samples",
    "num_gpus": "cluster.n_gpus_per_node",
    "num_nodes": "cluster.n_nodes",
    "num_steps": "total_steps",
    "num_workers": "env.num_workers",
    "off_policyness": "rollout.max_head_offpolicyness",
    "out_dir": "run_dir",
    "output_dir": "run_dir",
    "rollout_batch_size": "rollout.consumer_batch_size",
    "save_freq": "checkpoint.save_every",
    "save_steps": "checkpoint.save_every",
    "servers": "cluster.n_inference_servers",
    "slots": "env.slots_per_worker",
    "staleness": "rollout.max_head_offpolicyness",
    "steps": "total_steps",
    "task": "tasks",
    "temp": "gconfig.temperature",
    "train_batch_size": "rollout.consumer_batch_size",
    "viewport": "env.viewport_width",
    "wandb": "logging.tracker",
    "warmup": "actor.optimizer.warmup_fraction",
    "workers": "env.num_workers",
}
"""Words of the field and of its other systems, and the key that each of them means here."""
_CLOSE = 0.7
"""Least similarity of a suggestion; below it a guess misleads more often than it helps."""
_MOST = 3
"""Places that are named when a key exists in several sections."""


def all_keys(section: type[Section] = WebRLConfig, prefix: str = "") -> list[str]:
    """Return every dotted key below `section`; keys of listed tables read `tasks[].name`."""
    keys: list[str] = []
    for name, hint in typing.get_type_hints(section).items():
        below = section_type(hint)
        dots = "[]." if typing.get_origin(hint) is tuple else "."
        keys += [prefix + name] if below is None else all_keys(below, prefix + name + dots)
    return keys


def unknown_key(key: str, siblings: Sequence[str] = ()) -> Problem:
    """Return the problem of an unknown key, with the nearest right spelling.

    Args:
        siblings: Keys of its section; needed where that is no section of a configuration.
    """
    keys = all_keys()
    listed, *near = (re.sub(r"\[\d+\]", "[]", name) for name in (key, *siblings))
    if near and not any(name in keys for name in near):
        close = _nearest_leaf(_leaf(listed), near)
        text = _did_you_mean(close) or f"Its section has {', '.join(map(_leaf, near))}."
        return Problem(key=key, message=f"is not a key. {text}")
    tables = sorted({name.split(".")[0].removesuffix("[]") for name in keys if "." in name})
    return Problem(key=key, message=f"is not a key. {suggestion(listed, keys + tables)}")


def suggestion(key: str, known: list[str]) -> str:
    """Return `Did you mean ...?`, or where all keys are listed.

    A word that other systems use is answered with what it means here, and a key whose last part
    exists in exactly that spelling elsewhere is taken to be misplaced; else the most similar one of the same section wins, then of all.
    """
    leaf = _leaf(key)
    word = leaf.strip().lower().replace("-", "_")
    # A task has few keys, which mean other things than those of a run.
    meant = [ALIASES[word]] if word in ALIASES and not key.startswith("tasks[]") else []
    misplaced = sorted((name for name in known if _leaf(name) == leaf), key=_depth)
    section = key[: len(key) - len(leaf)]
    below = [name for name in known if name.startswith(section)]
    close = (
        list(dict.fromkeys([*meant, *misplaced]))[:_MOST]
        or _nearest_leaf(leaf, below)
        or _nearest_leaf(leaf, known)
        or difflib.get_close_matches(key, known, n=1, cutoff=_CLOSE)
    )
    return _did_you_mean(close) or "All keys are listed in docs/configuration.md."


def _did_you_mean(close: list[str]) -> str:
    return f"Did you mean {' or '.join(repr(name) for name in close)}?" if close else ""


def _leaf(key: str) -> str:
    return key.rsplit(".", 1)[-1]


def _depth(key: str) -> int:
    return key.count(".")


def _nearest_leaf(leaf: str, known: list[str]) -> list[str]:
    # The key nearest to the top wins where several sections have one of that name.
    leaves = {_leaf(name): name for name in sorted(known, key=_depth, reverse=True)}
    # A word of a key's name is nearer than a word like it: `steps` for `max_steps`, not for `sites`.
    words = [name for name in leaves if leaf in name.split("_")]
    found = sorted(words, key=len)[:1]
    found = found or difflib.get_close_matches(leaf, list(leaves), n=1, cutoff=_CLOSE)
    return [leaves[name] for name in found]
