"""What is to be done: tasks by name, their pages on loopback, oracles that know the next click."""

from __future__ import annotations

from webrl.tasks.faults import FAULT_CASES, FaultCase
from webrl.tasks.miniwob import html_root, miniwob_names, miniwob_task
from webrl.tasks.oracle import ORACLE_TASKS, oracle, points_script, target_map
from webrl.tasks.registry import (
    FILE_PREFIXES,
    load_task,
    load_task_set,
    load_tasks,
    refuse_shared_names,
    task_names,
)
from webrl.tasks.server import Handler, TaskServer
from webrl.tasks.task import ResetMode, Rubric, Task, Viewport
from webrl.tasks.task_file import BadRow, TaskFile, load_task_file
from webrl.tasks.webgym import SUITE as WEBGYM_SUITE
from webrl.tasks.webgym import load_webgym_file

__all__ = [
    "BadRow",
    "FAULT_CASES",
    "FILE_PREFIXES",
    "FaultCase",
    "Handler",
    "ORACLE_TASKS",
    "ResetMode",
    "Rubric",
    "Task",
    "TaskFile",
    "TaskServer",
    "Viewport",
    "WEBGYM_SUITE",
    "html_root",
    "load_task",
    "load_task_file",
    "load_task_set",
    "load_tasks",
    "load_webgym_file",
    "miniwob_names",
    "miniwob_task",
    "oracle",
    "points_script",
    "refuse_shared_names",
    "target_map",
    "task_names",
]
