"""One episode: look, decide, act, until the page is done or the steps are used up.

Invariants:
    * a screenshot is in the PixelStore, leased to its episode, before the trajectory names it;
    * an episode that ends without a trajectory releases its lease;
    * an unparsable action is an invalid step, never an invented click;
    * of a reply only the action goes on, into later prompts and to the judge, and with it what came
      of it; a prompt never outgrows the context, however long the episode;
    * `webrl.endings` says whose doing an ending is: the policy's is a result, what breaks beneath it
      leaves the episode as a typed fault and never becomes a reward;
    * an episode of a task with a rubric is worth what the judge says, who sees the screenshots that
      the policy saw: without a verdict it is a fault, and so is one whose site shut the agent out.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from awrl_pixelstore import PixelStoreClient, PixelStoreError
from awrl_rollout import (
    EpisodeContext,
    EpisodeFaultError,
    EpisodeRequest,
    EpisodeResult,
    FaultKind,
    GenerateRequest,
    GenerateResult,
    UnwrappedTaskGroup,
)

from webrl.actions import ActionMode, Answer, InvalidAction, parse_action, show_action
from webrl.browser import BrowserPool, BrowserSession, Observation, StepOutcome
from webrl.endings import EPISODE_ERRORS, EndReason, as_fault
from webrl.errors import BrowserFault, JudgeError
from webrl.judge import Evidence, Judge, Verdict
from webrl.policy import PolicyProcessor, action_lines
from webrl.rollout.broken_pages import BrokenPages
from webrl.rollout.latency import page_latency_s
from webrl.rollout.trajectory import EpisodeTask, ImageRef, Step, Trajectory
from webrl.tasks import Rubric, Task

_SPARE_TOKENS = 8
"""Tokens of the context that servers keep for themselves: SGLang takes up to six."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowConfig:
    """How the policy is asked."""

    temperature: float = 1.0
    """Sampling temperature of training episodes."""
    top_p: float = 1.0
    """Nucleus mass."""
    max_new_tokens: int = 64
    """Most tokens of one action."""
    history_window: int = 1
    """Screenshots in one prompt, the newest last."""
    media_type: str = "image/png"
    """Media type of the screenshots."""
    action_mode: ActionMode = "coordinates"
    """How an action says where; the pool's screenshots are numbered where it is `set_of_marks`."""
    context_length: int | None = None
    """Most tokens of a prompt and its answer; None for no bound."""
    time_limit_s: float | None = None
    """Longest that the actions of one episode may take together, in seconds; past it the episode
    ends as a failure. None for no limit."""
    page_latency_s: float = 0.0
    """Mean of an artificial wait before each action, in seconds."""
    page_latency_cv: float = 1.0
    """Coefficient of variation of that wait."""


class TokenGenerator(Protocol):
    """Answers one request in full, such as an `InterruptibleGenerator`."""

    async def generate(
        self, request: GenerateRequest, *, deadline_s: float | None = None
    ) -> GenerateResult:
        """Return all tokens of the answer."""
        ...


@dataclass(kw_only=True, slots=True)
class _Episode:
    """What one running episode has seen and done so far."""

    episode_id: str
    payload: EpisodeTask
    task: Task
    context: EpisodeContext
    session: BrowserSession
    goal: str
    start_events: list[str]
    answer: str | None = None
    action_s: float = 0.0
    steps: list[Step] = field(default_factory=list[Step])
    images: list[tuple[ImageRef, str]] = field(default_factory=list[tuple[ImageRef, str]])


class WebTaskWorkflow:
    """Runs web tasks in the slots of one worker; nothing that it uses is owned.

    Args:
        pool: Browser sessions, one per slot.
        first_task: What a new session shows; None for an empty page.
        pixels: Where screenshots go; None (evaluation) keeps none and leaves keys empty.
        processor: Builds prompts and decodes actions.
        judge: Judges the episodes of tasks with a rubric; they need one.
        broken_pages: Keeps a picture of pages that ended an episode in a fault.
    """

    def __init__(
        self,
        *,
        pool: BrowserPool,
        first_task: Task | None = None,
        generator: TokenGenerator,
        pixels: PixelStoreClient | None,
        processor: PolicyProcessor,
        config: WorkflowConfig,
        judge: Judge | None = None,
        broken_pages: BrokenPages | None = None,
    ) -> None:
        self._broken_pages = broken_pages
        self._judge = judge
        self._pool = pool
        self._first_task = first_task
        self._generator = generator
        self._pixels = pixels
        self._processor = processor
        self._config = config
        self._sessions: dict[int, BrowserSession] = {}

    async def open_session(self, slot: int) -> None:
        """Open the session of a slot, on a page of the task server where a task lives there.

        Sites of others are visited by episodes only, where one that is down is a fault.
        """
        session = await self._session(slot)
        if self._first_task is not None:
            await session.reset(self._first_task, 0)

    async def close_session(self, slot: int) -> None:
        """Close the session of a slot; harmless when it has none."""
        session = self._sessions.pop(slot, None)
        if session is not None:
            await session.aclose()

    async def aclose(self) -> None:
        """Close every session."""
        for slot in list(self._sessions):
            await self.close_session(slot)

    async def _session(self, slot: int) -> BrowserSession:
        if slot not in self._sessions:
            self._sessions[slot] = await self._pool.session()
        return self._sessions[slot]

    async def __call__(
        self, request: EpisodeRequest, context: EpisodeContext
    ) -> EpisodeResult | None:
        """Run one episode.

        Raises:
            EpisodeFaultError: The infrastructure broke.
        """
        payload, is_done = request.payload, False
        if not isinstance(payload, EpisodeTask):
            raise TypeError(f"payload must be an EpisodeTask, got {type(payload).__name__}.")
        try:
            trajectory = await self._run(request.episode_id, payload, context)
            is_done = True
        except EPISODE_ERRORS as error:
            task = payload.definition
            fault = as_fault(error, site=f"{task.full_name} ({task.url})")
            session = self._sessions.get(context.slot)
            if self._broken_pages is not None and session and isinstance(error, BrowserFault):
                await self._broken_pages.keep(session, fault.kind.value)
            raise fault from error
        finally:
            if not is_done:
                await self._release(request.episode_id)
        return EpisodeResult(
            is_success=trajectory.outcome == "success",
            payload=trajectory,
            reward=trajectory.reward,
            oldest_version=trajectory.oldest_version,
            newest_version=trajectory.newest_version,
        )

    async def _run(
        self, episode_id: str, payload: EpisodeTask, context: EpisodeContext
    ) -> Trajectory:
        task = payload.definition
        context.enter("reset", site=task.site or task.full_name)
        started_s = context.clock.time()
        session = await self._session(context.slot)
        observation = await session.reset(task, payload.seed)
        reset_s = context.clock.time() - started_s
        episode = _Episode(
            episode_id=episode_id,
            payload=payload,
            task=task,
            context=context,
            session=session,
            goal=observation.goal,
            start_events=[str(event) for event in observation.events],
        )
        outcome, ending = await self._play(episode, observation)
        reward, raw_reward, verdict = outcome.reward or 0.0, outcome.raw_reward or 0.0, None
        if task.rubric is not None:
            context.enter("judge", site=task.site or task.full_name)
            verdict = await judge_episode(
                self._judge,
                task,
                task.rubric,
                goal=episode.goal,
                steps=episode.steps,
                answer=episode.answer,
                screenshots=[uri for _, uri in episode.images],
            )
            reward, raw_reward = float(verdict.is_success), verdict.score
        return Trajectory(
            task=payload.task,
            seed=payload.seed,
            goal=episode.goal,
            outcome="success" if reward > 0 else "failure",
            ending=ending,
            reward=reward,
            raw_reward=raw_reward,
            steps=episode.steps,
            reset_s=reset_s,
            verdict=verdict,
        )

    async def _play(
        self, episode: _Episode, observation: Observation
    ) -> tuple[StepOutcome, EndReason]:
        """Do step after step; return what the last one led to, and what ended the episode."""
        while True:
            outcome = await self._step(episode, observation)
            if outcome.observation is None:
                assert outcome.end_reason is not None  # nobody looks at a page after the end
                return outcome, outcome.end_reason
            if episode.action_s > (self._config.time_limit_s or math.inf):
                return outcome, "time_limit"
            observation = outcome.observation

    async def _step(self, episode: _Episode, observation: Observation) -> StepOutcome:
        """Ask the policy once and carry out what it says."""
        clock = episode.context.clock
        window = self._config.history_window
        data_uri = self._data_uri(observation.screenshot)
        shown = episode.images[-(window - 1) :] if window > 1 else []
        uris = [*(uri for _, uri in shown), data_uri]
        prompt_ids = self._prompt(episode, observation, [ref for ref, _ in shown])
        started_s = clock.time()
        episode.context.enter("generate", site=episode.task.site or episode.task.full_name)
        async with UnwrappedTaskGroup() as group:
            # The screenshot travels to the store while the policy thinks.
            put = group.create_task(self._keep(observation.screenshot, episode.episode_id))
            asked = group.create_task(self._ask(episode, prompt_ids, uris))
        answer = asked.result()
        generated_s = clock.time()
        image = ImageRef(key=put.result(), height=observation.height, width=observation.width)
        reply = self._processor.decode(answer.output_ids)
        action = parse_action(reply, self._config.action_mode)
        episode.context.enter("act", site=episode.task.site or episode.task.full_name)
        if self._config.page_latency_s > 0:
            wait_s = page_latency_s(
                episode.payload,
                len(episode.steps),
                mean_s=self._config.page_latency_s,
                cv=self._config.page_latency_cv,
            )
            await clock.sleep(wait_s)
        started_acting_s = clock.time()
        outcome = await episode.session.step(action)
        episode.action_s += clock.time() - started_acting_s
        episode.answer = action.text if isinstance(action, Answer) else None
        episode.images.append((image, data_uri))
        episode.steps.append(
            Step(
                prompt_ids=prompt_ids,
                output_ids=list(answer.output_ids),
                behavior_logprobs=list(answer.logprobs),
                versions=list(answer.versions),
                images=[*(ref for ref, _ in shown), image],
                reply=reply,
                action=show_action(action),
                is_valid=not isinstance(action, InvalidAction),
                events=[str(event) for event in outcome.events],
                generate_s=generated_s - started_s,
                environment_s=clock.time() - generated_s,
            )
        )
        return outcome

    def _prompt(
        self, episode: _Episode, observation: Observation, shown: Sequence[ImageRef]
    ) -> list[int]:
        """Return the prompt of the next step, which leaves room for its answer.

        Raises:
            PolicyError: Goal and screenshots alone leave none.
        """
        previous = [action_lines(step.action, step.events) for step in episode.steps]
        if episode.start_events:
            previous.insert(0, action_lines("the page opened", episode.start_events))
        max_tokens = None
        if self._config.context_length is not None:
            sizes = [*((ref.height, ref.width) for ref in shown)]
            sizes.append((observation.height, observation.width))
            num_image_tokens = sum(self._processor.num_image_tokens(*size) - 1 for size in sizes)
            room = self._config.context_length - _SPARE_TOKENS - self._config.max_new_tokens
            max_tokens = room - num_image_tokens
        return self._processor.build_prompt(
            episode.goal,
            previous,
            len(shown) + 1,
            self._elements(observation),
            max_tokens=max_tokens,
        )

    def _elements(self, observation: Observation) -> list[str] | None:
        """Return the numbered elements of the page, where they are numbered."""
        if self._config.action_mode == "coordinates":
            return None
        return [f"{mark.number} {mark.text}" for mark in observation.marks]

    async def _ask(
        self, episode: _Episode, prompt_ids: list[int], uris: list[str]
    ) -> GenerateResult:
        config = self._config
        return await self._generator.generate(
            GenerateRequest(
                input_ids=prompt_ids,
                images=tuple(uris),
                max_new_tokens=config.max_new_tokens,
                temperature=0.0 if episode.payload.greedy else config.temperature,
                top_p=1.0 if episode.payload.greedy else config.top_p,
                masked_token_ids=self._processor.masked_token_ids,
                episode_id=episode.episode_id,
            )
        )

    async def _keep(self, screenshot: bytes, episode_id: str) -> str:
        if self._pixels is None:
            return ""
        return await self._pixels.put_async(screenshot, trajectory_id=episode_id)

    def _data_uri(self, screenshot: bytes) -> str:
        encoded = base64.b64encode(screenshot).decode("ascii")
        return f"data:{self._config.media_type};base64,{encoded}"

    async def _release(self, episode_id: str) -> None:
        if self._pixels is None:
            return
        try:
            await self._pixels.release_async(episode_id)
        except PixelStoreError:
            return  # The lease expires by the store's own clock; the fault matters more.


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
