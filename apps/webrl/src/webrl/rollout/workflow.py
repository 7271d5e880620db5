"""One episode: look, decide, act, until the page is done or the steps are used up.

Invariants:
    * a screenshot is in the PixelStore, leased to its episode, before the trajectory names it;
    * an episode that ends without a trajectory releases its lease;
    * an unparsable action is an invalid step, never an invented click;
    * the agent alone knows prompts and replies: of a reply only what it reads in it goes on, thought,
      memory and action into later prompts, the action to the judge, each with what came of it;
    * a prompt never outgrows the context, however long the episode;
    * `webrl.endings` says whose doing an ending is: the policy's is a result, what breaks beneath it
      leaves the episode as a typed fault and never becomes a reward;
    * an episode that waits for its verdict gives its browser to the next one, as far as the worker
      lets episodes wait without one;
    * an episode of a task with a rubric is worth what the judge says, who sees the screenshots that
      the policy saw: without a verdict it is a fault, and so is one whose site shut the agent out.
"""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
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

from webrl.actions import ActionMode, Answer, show_action
from webrl.agent import Decision, Scene, Turn, make_agent
from webrl.browser import BrowserPool, BrowserSession, Observation, StepOutcome
from webrl.config import AgentSection
from webrl.endings import EPISODE_ERRORS, EndReason, as_fault
from webrl.errors import BrowserFault, JudgeError, PolicyError
from webrl.judge import Evidence, Judge, JudgedEpisode, JudgedFolder, Verdict
from webrl.policy import PolicyProcessor, image_within, size_within
from webrl.rollout.broken_pages import BrokenPages
from webrl.rollout.latency import page_latency_s
from webrl.rollout.site_turns import SiteTurns
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
    agent: AgentSection = field(default_factory=AgentSection)
    """What the policy is told, and how its replies are read."""
    jpeg_quality: int = 80
    """Quality of screenshots that are made smaller, 1 to 100."""
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
    most_on_a_site: int | None = None
    """Episodes of this worker on one site at one moment; any number when None."""
    site_interval_s: float = 0.0
    """Least time between two openings of one site by this worker, in seconds."""


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
    memory: str = ""
    answer: str | None = None
    num_invalid: int = 0
    action_s: float = 0.0
    steps: list[Step] = field(default_factory=list[Step])
    turns: list[Turn] = field(default_factory=list[Turn])
    images: list[tuple[ImageRef, str]] = field(default_factory=list[tuple[ImageRef, str]])


class WebTaskWorkflow:
    """Runs web tasks in the slots of one worker; nothing that it uses is owned.

    Args:
        pool: Browser sessions, one per slot.
        first_task: What a new session shows; None for an empty page.
        pixels: Where screenshots go; None (evaluation) keeps none and leaves keys empty.
        processor: Builds prompts and decodes actions.
        judge: Judges the episodes of tasks with a rubric; they need one.
        judged: Keeps evidence and verdicts of judged episodes.
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
        judged: JudgedFolder | None = None,
    ) -> None:
        self._judged = judged
        self._broken_pages = broken_pages
        self._judge = judge
        self._pool = pool
        self._first_task = first_task
        self._generator = generator
        self._pixels = pixels
        self._processor = processor
        self._config = config
        room = None
        if config.context_length is not None:
            room = config.context_length - _SPARE_TOKENS - config.max_new_tokens
        self._agent = make_agent(config.agent, processor, mode=config.action_mode, max_tokens=room)
        self._sessions: dict[int, BrowserSession] = {}
        self._turns = SiteTurns(
            most_at_once=config.most_on_a_site, interval_s=config.site_interval_s
        )

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
        async with self._turns.turn(task.site):
            context.enter("reset", site=task.place)
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
            context.enter("judge", site=task.place)
            context.release_slot()  # nothing below touches the session
            verdict = await self._verdict(episode, task.rubric)
            reward, raw_reward = float(verdict.is_success), verdict.score
        return Trajectory(
            task=payload.task,
            seed=payload.seed,
            goal=episode.goal,
            outcome="success" if reward > 0 else "failure",
            ending=ending,
            reward=reward - self._penalty(episode.steps),
            raw_reward=raw_reward,
            steps=episode.steps,
            reset_s=reset_s,
            verdict=verdict,
        )

    async def _verdict(self, episode: _Episode, rubric: Rubric) -> Verdict:
        """Return the verdict on a played episode, and keep what it was based on.

        Raises:
            JudgeError: There is no verdict.
            EpisodeFaultError: The site shut the agent out.
        """
        task = episode.task
        if self._judge is None:
            raise JudgeError(f"{task.full_name} has a rubric and the run has no judge")
        num_actions = len(episode.steps) - (episode.answer is not None)
        evidence = Evidence(
            goal=episode.goal,
            rubric=rubric,
            actions=tuple(step.action for step in episode.steps[:num_actions]),
            answer=episode.answer,
            screenshots=tuple(uri for _, uri in episode.images),
        )
        kept = JudgedEpisode(
            episode_id=episode.episode_id,
            task=task.full_name,
            evidence=evidence,
            models=self._judge.models,
        )
        try:
            verdict = await self._judge.judge(evidence)
        except JudgeError:
            await self._keep_judged(kept)
            raise
        await self._keep_judged(msgspec.structs.replace(kept, verdict=verdict))
        if verdict.is_blocked:
            message = f"the judge saw {task.url} shut the agent out"
            raise EpisodeFaultError(FaultKind.SITE_BLOCKED, message, boundary="judge")
        return verdict

    async def _keep_judged(self, episode: JudgedEpisode) -> None:
        if self._judged is not None:
            await self._judged.keep(episode)

    async def _play(
        self, episode: _Episode, observation: Observation
    ) -> tuple[StepOutcome, EndReason]:
        """Do step after step; return what the last one led to, and what ended the episode."""
        while True:
            outcome = await self._step(episode, observation)
            if outcome.observation is None:
                assert outcome.end_reason is not None  # nobody looks at a page after the end
                return outcome, outcome.end_reason
            if episode.num_invalid == self._config.agent.invalid_limit:
                return outcome, "invalid_limit"
            if episode.action_s > (self._config.time_limit_s or math.inf):
                return outcome, "time_limit"
            observation = outcome.observation

    async def _step(self, episode: _Episode, observation: Observation) -> StepOutcome:
        """Ask the policy once and carry out what it says."""
        clock = episode.context.clock
        screenshot = await self._shown(observation.screenshot)
        data_uri = self._data_uri(screenshot)
        try:
            prompt = self._agent.prompt(self._scene(episode, observation))
        except PolicyError:
            if not episode.steps:
                raise
            return StepOutcome(observation=None, is_done=True, end_reason="prompt_full")
        shown = episode.images[len(episode.images) - prompt.num_images + 1 :]
        uris = [*(uri for _, uri in shown), data_uri]
        started_s = clock.time()
        episode.context.enter("generate", site=episode.task.place)
        async with UnwrappedTaskGroup() as group:
            # The screenshot travels to the store while the policy thinks.
            put = group.create_task(self._keep(screenshot, episode.episode_id))
            asked = group.create_task(self._ask(episode, prompt.ids, uris))
        answer = asked.result()
        generated_s = clock.time()
        height, width = self._size(observation)
        image = ImageRef(key=put.result(), height=height, width=width)
        reply = self._processor.decode(answer.output_ids)
        is_truncated = answer.stop_reason == "length"
        decision = self._agent.read(reply, is_cut=is_truncated)
        outcome = await self._act(episode, decision)
        episode.images.append((image, data_uri))
        _note_turn(episode, decision, observation, outcome)
        episode.steps.append(
            Step(
                prompt_ids=prompt.ids,
                output_ids=list(answer.output_ids),
                behavior_logprobs=list(answer.logprobs),
                versions=list(answer.versions),
                images=[*(ref for ref, _ in shown), image],
                reply=reply,
                events=[str(event) for event in outcome.events],
                generate_s=generated_s - started_s,
                environment_s=clock.time() - generated_s,
                **self._read_fields(decision, is_truncated=is_truncated),
            )
        )
        return outcome

    async def _act(self, episode: _Episode, decision: Decision) -> StepOutcome:
        """Carry out what the policy decided."""
        clock = episode.context.clock
        episode.context.enter("act", site=episode.task.place)
        if self._config.page_latency_s > 0:
            wait_s = page_latency_s(
                episode.payload,
                len(episode.steps),
                mean_s=self._config.page_latency_s,
                cv=self._config.page_latency_cv,
            )
            await clock.sleep(wait_s)
        started_acting_s = clock.time()
        outcome = await episode.session.step(decision.action)
        episode.action_s += clock.time() - started_acting_s
        return outcome

    def _read_fields(self, decision: Decision, *, is_truncated: bool) -> dict[str, Any]:
        """Return the fields of a `Step` that say what its reply was read as."""
        return {
            "action": show_action(decision.action),
            "thought": decision.thought,
            "memory": decision.memory,
            "is_valid": decision.is_valid,
            "is_in_form": decision.is_valid and decision.is_in_form,
            "is_truncated": is_truncated,
            "is_trainable": self._config.agent.train_truncated or not is_truncated,
        }

    def _scene(self, episode: _Episode, observation: Observation) -> Scene:
        """Return what the agent is told of an episode so far."""
        sizes = [(ref.height, ref.width) for ref, _ in episode.images]
        elements = self._elements(observation)
        return Scene(
            goal=episode.goal,
            url=observation.url,
            sizes=(*sizes, self._size(observation)),
            elements=None if elements is None else tuple(elements),
            turns=tuple(episode.turns),
            start_events=tuple(episode.start_events),
            steps_left=episode.task.max_steps - len(episode.steps),
            memory=episode.memory,
        )

    async def _shown(self, screenshot: bytes) -> bytes:
        """Return a screenshot as policy, trainer and judge see it."""
        limit = self._config.agent.max_pixels
        if limit is None:
            return screenshot
        quality = self._config.jpeg_quality
        return await asyncio.to_thread(image_within, screenshot, limit, jpeg_quality=quality)

    def _size(self, observation: Observation) -> tuple[int, int]:
        return size_within(observation.height, observation.width, self._config.agent.max_pixels)

    def _penalty(self, steps: Sequence[Step]) -> float:
        """Return what the form of its replies costs an episode."""
        agent, count = self._config.agent, max(1, len(steps))
        ill_formed = sum(not step.is_in_form for step in steps) / count
        truncated = sum(step.is_truncated for step in steps) / count
        return agent.format_penalty * ill_formed + agent.truncated_penalty * truncated

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


def _note_turn(
    episode: _Episode, decision: Decision, before: Observation, outcome: StepOutcome
) -> None:
    """Note what was decided and what came of it, for the next prompt."""
    after = outcome.observation
    is_unchanged = after is not None and (after.screenshot, after.url) == (
        before.screenshot,
        before.url,
    )
    events = tuple(str(event) for event in outcome.events)
    episode.turns.append(Turn(decision=decision, events=events, is_unchanged=is_unchanged))
    if decision.memory is not None:
        episode.memory = decision.memory
    episode.num_invalid = 0 if decision.is_valid else episode.num_invalid + 1
    action = decision.action
    episode.answer = action.text if isinstance(action, Answer) else None
