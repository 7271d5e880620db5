"""From a finished episode to the judge and back.

Invariants:
    * there is a verdict, or a typed fault: no judge, a judge that fails and a site that shut the
      agent out are no rewards;
    * the judge sees what the policy saw: the screenshots of its prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

from awrl_rollout import EpisodeFaultError, FaultKind

from webrl.errors import JudgeError
from webrl.judge import Evidence, Judge, Verdict
from webrl.rollout.trajectory import Step
from webrl.tasks import Rubric, Task


async def judge_episode(
    judge: Judge | None,
    task: Task,
    rubric: Rubric,
    *,
    goal: str,
    steps: Sequence[Step],
    answer: str | None,
    screenshots: Sequence[str],
) -> Verdict:
    """Return the verdict on an episode.

    Args:
        judge: Who is asked.
        task: What was to be done.
        rubric: What must hold.
        goal: The instruction as the policy saw it.
        steps: Everything it did.
        answer: What its last step answered, if it did.
        screenshots: One a step, as `data:` addresses.

    Raises:
        JudgeError: There is no verdict.
        EpisodeFaultError: The site shut the agent out.
    """
    if judge is None:
        raise JudgeError(f"{task.full_name} has a rubric and the run has no judge")
    num_actions = len(steps) - (answer is not None)
    verdict = await judge.judge(
        Evidence(
            goal=goal,
            rubric=rubric,
            actions=tuple(step.action for step in steps[:num_actions]),
            answer=answer,
            screenshots=tuple(screenshots),
        )
    )
    if verdict.is_blocked:
        message = f"the judge saw {task.url} shut the agent out"
        raise EpisodeFaultError(FaultKind.SITE_BLOCKED, message, boundary="judge")
    return verdict
