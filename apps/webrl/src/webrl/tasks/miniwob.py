"""MiniWoB++: the pages of the `miniwob` distribution as tasks.

Invariants:

* the reward is `WOB_RAW_REWARD_GLOBAL`: the other one decays with the wall clock, and an episode
  may pause while weights are updated; for the same reason the page's own time limit is lifted;
* the START cover, the reward display and the click canvas never show in a screenshot: they tell
  the last reward;
* only pages known to restart in place without a trace of the episode before do so; the others are
  loaded again.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

from webrl.errors import TaskError
from webrl.tasks.miniwob_notes import (
    FLIGHTS,
    IN_PLACE,
    MAX_STEPS,
    THRESHOLD,
    UNSTEADY,
    VIEWPORTS,
)
from webrl.tasks.task import Task, Viewport

SUITE = "miniwob"
_FLIGHT = "flight."

_STYLE = (
    "#reward-display,#click-canvas,#sync-task-cover{display:none!important}"
    "html,body{background:#fff!important}"
)

START_SCRIPT = (
    "(async () => {"
    " if (!document.getElementById('awrl-style')) {"
    "  const style = document.createElement('style');"
    "  style.id = 'awrl-style';"
    f"  style.textContent = {_STYLE!r};"
    "  document.head.appendChild(style);"
    " }"
    " document.querySelectorAll('awrl-select-list').forEach(e => e.remove());"
    " if (document.activeElement) document.activeElement.blur();"
    " document.querySelectorAll('[data-tampered]').forEach(e => e.removeAttribute('data-tampered'));"
    " document.body.style.cursor = '';"
    " Math.seedrandom(SEED);"
    " core.EPISODE_MAX_TIME = 1e9;"
    " core.startEpisodeReal();"
    " document.querySelectorAll('*').forEach(e => { e.scrollTop = e.scrollLeft = 0; });"
    " for (let i = 0; i < 250 && !WOB_TASK_READY; i++) await new Promise(r => setTimeout(r, 10));"
    " await Promise.all(Array.from(document.images, e => e.decode().catch(() => 0)));"
    " if (!document.body.style.cssText) document.body.removeAttribute('style');"
    " const goal = core.getUtterance();"
    " return {goal: typeof goal === 'string' ? goal : goal.utterance};"
    "})()"
)
"""Restart in place with a seed. Dictionary goals (three tasks) hold their text as `utterance`."""

STATE_SCRIPT = "({done: WOB_DONE_GLOBAL, reward: WOB_RAW_REWARD_GLOBAL, reason: WOB_REWARD_REASON})"


def html_root() -> Path:
    """Return the folder that holds the pages, without importing the distribution.

    Raises:
        TaskError: The `miniwob` distribution is not installed.
    """
    spec = importlib.util.find_spec("miniwob")
    if spec is None or not spec.submodule_search_locations:
        raise TaskError(
            "miniwob must be installed, got no such distribution. Run: uv sync --all-packages."
        )
    return Path(spec.submodule_search_locations[0]) / "html"


@cache
def miniwob_names() -> tuple[str, ...]:
    """Return the names of everything in the distribution, sorted: its pages and its flights."""
    pages = [path.stem for path in (html_root() / "miniwob").glob("*.html")]
    return tuple(sorted([*pages, *(f"{_FLIGHT}{name}" for name in FLIGHTS)]))


def miniwob_task(name: str) -> Task:
    """Return the task of one page.

    Args:
        name: File name of the page without its ending, such as `click-test-2`, or a flight such
            as `flight.AA`.
    """
    folder = name.removeprefix(_FLIGHT)
    width, height = VIEWPORTS.get(name, (160, 224))
    return Task(
        suite=SUITE,
        name=name,
        url=f"/miniwob/{name}.html" if folder == name else f"/flight/{folder}/wrapper.html",
        max_steps=MAX_STEPS.get(name, 10),
        success_threshold=THRESHOLD.get(name, 0.5),
        reset="keep_page" if name in IN_PLACE else "reload",
        viewport=Viewport(width, height),
        is_steady=name not in UNSTEADY,
        start_script=START_SCRIPT,
        state_script=STATE_SCRIPT,
    )
