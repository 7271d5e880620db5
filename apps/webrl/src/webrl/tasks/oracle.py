"""Scripts that know the next right click, for tests, demonstrations and blind-policy measurements.

Invariants:

* an oracle reads the page and changes nothing: it only returns where a person would click next;
* it gives `null` when it can not tell (an episode that is done, a page that is still moving);
* a task without an easy oracle has none, instead of a wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from webrl.errors import TaskError
from webrl.tasks.task import Task

_PRELUDE = """
const $$ = (s) => Array.from(document.querySelectorAll(s));
const shown = (e) => { const r = e.getBoundingClientRect(); return r.width > 0 && r.height > 0; };
const texts = (s, t) => $$(s).filter(e => shown(e) && e.textContent.trim() === t);
const quoted = () => (/"([^"]*)"/.exec(core.getUtterance()) || [])[1];
const asList = (t) => (Array.isArray(t) ? t : [t]).filter(e => e);
const best = (targets) => {
  for (const e of asList(targets)) { const at = point(e); if (at) return at; }
  return null;
};
const map = (targets, step) => {
  let bits = '';
  for (let y = step / 2; y < innerHeight; y += step) for (let x = step / 2; x < innerWidth; x += step)
    bits += asList(targets).some(e => hits(e, x, y)) ? '1' : '0';
  return bits;
};
"""

_SCRIPTS: Mapping[str, str] = {
    "click-test": "$$('#subbtn')[0]",
    "click-test-transfer": "$$('#subbtn')[0]",
    "click-test-2": "$$('#subbtn')[0]",
    "click-button-sequence": "$$(buttonsPushed.length ? '#subbtn2' : '#subbtn')[0]",
    "click-dialog": "$$('.ui-dialog-titlebar button.ui-button').filter(shown)",
    "click-dialog-2": (
        "quoted() === 'x' ? $$('.ui-dialog-titlebar button.ui-button').filter(shown)"
        " : texts('.ui-dialog-buttonset button', quoted())"
    ),
    "click-button": "texts('#area button', quoted())",
    "click-link": "texts('#area .alink', quoted())",
    "click-tab": "texts('#area ul a', /Tab #\\d/.exec(core.getUtterance())[0])[0]",
    "click-collapsible": (
        "$$('.ui-accordion-content').some(shown) ? $$('#subbtn')[0] : $$('#area h3')[0]"
    ),
    "click-collapsible-2-nodelay": """(() => {
      const link = texts('#area .alink', quoted())[0];
      if (link) return link;
      const hidden = $$('#area .alink').find(e => e.textContent === quoted());
      const content = hidden && hidden.closest('.ui-accordion-content');
      return content && content.previousElementSibling;
    })()""",
    "click-color": """$$('#area .color').find(
      e => core.getUtterance() === 'Click on the ' + e.dataset.color + ' colored box.')""",
    "grid-coordinate": "document.getElementById(expectedCoords)",
    "ascending-numbers": """(() => {
      const left = $$('svg rect');
      return left.length ? left[0] : $$('svg text').find(e => e.innerHTML === '1');
    })()""",
    "click-checkboxes": """(() => {
      const goal = core.getUtterance().replace(/^Select /, '').replace(/ and click Submit\\.$/, '');
      const wanted = goal === 'nothing' ? [] : goal.split(', ');
      const row = $$('#area label').find(
        e => wanted.includes(e.textContent.trim()) !== e.querySelector('input').checked);
      return row ? row.querySelector('input') : $$('#subbtn')[0];
    })()""",
    "tic-tac-toe": """(() => {
      const free = gameState.map((v, i) => i).filter(i => gameState[i] === 0);
      const wins = (player, i) => { const kept = gameState[i]; gameState[i] = player;
        const won = checkWinner(player); gameState[i] = kept; return won; };
      const best = free.find(i => wins(1, i)) ?? free.find(i => wins(-1, i))
        ?? [4, 0, 2, 6, 8, 1, 3, 5, 7].find(i => free.includes(i));
      return best === undefined ? null : $$('#ttt-' + best)[0];
    })()""",
}

ORACLE_TASKS: tuple[str, ...] = tuple(sorted(f"miniwob/{name}" for name in _SCRIPTS))
"""Full names of the tasks that have an oracle."""


@cache
def points_script() -> str:
    """Return the JavaScript functions that find where an element can be hit."""
    return Path(__file__).with_name("points.js").read_text(encoding="utf-8")


def oracle(task: Task) -> str:
    """Return a script that gives the next right click.

    The script evaluates to `{x, y, left, top, width, height}` in CSS pixels of the viewport: the
    point to click (as near to the element's middle as nothing covers it) and the element's box,
    or to `null` when there is nothing to click.

    Args:
        task: A task whose full name is in `ORACLE_TASKS`.

    Raises:
        TaskError: The task has no oracle.
    """
    return _wrap(task, "best(target)")


def target_map(task: Task, step: int) -> str:
    """Return a script that says which points of a lattice would be a right click.

    The script evaluates to a string of `0` and `1`, row by row, for the points `(step / 2 + i *
    step, step / 2 + j * step)` of the viewport, or to `null` when the episode is done. What the
    best policy that never looks at the screen would score follows from it.

    Args:
        task: A task whose full name is in `ORACLE_TASKS`.
        step: Distance of the lattice's points in CSS pixels.

    Raises:
        TaskError: The task has no oracle.
    """
    return _wrap(task, f"map(target, {int(step)})")


def _wrap(task: Task, result: str) -> str:
    script = _SCRIPTS.get(task.name) if task.suite == "miniwob" else None
    if script is None:
        raise TaskError(
            f"task must have an oracle, got {task.full_name!r}. Those that have one: "
            f"{', '.join(ORACLE_TASKS)}."
        )
    return (
        f"(() => {{ {points_script()} {_PRELUDE} if (WOB_DONE_GLOBAL) return null;"
        f" const target = {script}; return {result}; }})()"
    )
