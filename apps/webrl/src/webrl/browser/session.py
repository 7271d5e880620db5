"""One slot of the pool: episode after episode, for as long as its worker lives.

Invariants:

* one episode at a time: `reset`, then `step` until the outcome is done or a fault is raised;
* a page that fails after an action ends the episode as the policy's failure, as long as browser and
  driver answer (`webrl.endings`); everything else that fails is a fault;
* after a failed page nothing of its episode is used again: the next reset starts from a new context;
* a task that restarts in place meets a page without focus, selection and hover of the episode
  before, so that the same seed gives the same pixels.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol, TypeAlias, cast

import msgspec

from webrl.actions import Action, Answer, GoBack, InvalidAction, MarkAction
from webrl.browser.arrival import check_wall, wait_until_loaded
from webrl.browser.deadly_pages import DeadlyPages
from webrl.browser.live_browser import LiveBrowser
from webrl.browser.marks import marked_screenshot, on_page
from webrl.browser.outcome import Event, Mark, Observation, StepOutcome
from webrl.browser.page import LivePage
from webrl.browser.page_state import judge_answer, read_goal, read_state
from webrl.browser.pages import PageCache, Pool
from webrl.browser.recovery import RecoveryLevel, escalate
from webrl.endings import EndReason, ending_of
from webrl.errors import BrowserFault
from webrl.plain_text import without_credentials
from webrl.tasks import Task

logger = logging.getLogger(__name__)
_GRACE_S = 0.2
"""A browser that dies loses its pages first: so long after a page its health is asked."""
_ERROR_PAGE = "chrome-error:"
"""How the address of the browser's own page begins, in place of one that did not come."""
_Look: TypeAlias = tuple[bytes, tuple[Mark, ...]]
"""A screenshot, and the numbers on it."""


class SessionPool(Pool, Protocol):
    """What a session needs of its pool besides."""

    @property
    def deadly_pages(self) -> DeadlyPages:
        """Return what is known of pages that end browsers."""
        ...

    def ended_browser(self, address: str, browser: LiveBrowser) -> None:
        """Blame a page that was being used when `browser` ended."""
        ...

    async def release(self, session: BrowserSession) -> None:
        """Take the slot back."""
        ...


class _Episode(msgspec.Struct, kw_only=True):
    task: Task
    page: LivePage
    active: LivePage
    last: Observation
    num_proxy_failures: int
    num_steps: int = 0


class BrowserSession:
    """Runs episodes in one slot. Made by `BrowserPool.session`."""

    def __init__(self, pool: SessionPool, number: int) -> None:
        """Take slot `number` of `pool`; nothing is opened yet."""
        self.number = number
        self._pool = pool
        self._pages = PageCache(pool, number)
        self._episode: _Episode | None = None
        self._is_dirty = False
        self._suspect: tuple[Task, LiveBrowser | None] | None = None
        self._proven: set[str] = set()

    async def __aenter__(self) -> BrowserSession:
        """Return the session."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the session."""
        await self.aclose()

    async def reset(self, task: Task, seed: int) -> Observation:
        """Start an episode and return what the policy sees first.

        Faults escalate: page, context, browser, driver are replaced in turn.

        Args:
            seed: Which instance of it; any integer.

        Raises:
            BrowserFault: The episode can not be started, even with everything replaced.
        """
        self._episode = None
        if self._is_dirty:
            await self._pages.clear()
            self._is_dirty = False
        level = RecoveryLevel.NOTHING
        while True:
            self._blame()
            self._pool.deadly_pages.check(self._pool.address(task))
            try:
                observation = await self._start(task, seed)
                self._is_dirty = False
                self._pool.deadly_pages.ended_well(self._pool.address(task))
                return observation
            except BrowserFault as fault:
                self._suspect = task, self._pages.browser
                self._is_dirty = True  # should the replacement fail or be cancelled
                raised = await self._escalate(fault, level)
                if raised is None or not await self._replace(raised, task):
                    raise
                level = raised
            except BaseException:  # a cancelled reset too leaves a half-loaded page
                self._is_dirty = True
                raise

    async def step(self, action: Action | InvalidAction) -> StepOutcome:
        """Do one action and return what it led to.

        Args:
            action: What `parse_action` returned; an invalid one costs a step and touches nothing.

        Raises:
            BrowserFault: Browser or driver failed.
            RuntimeError: There is no episode: it was never started, or is done.
        """
        episode = self._episode
        if episode is None:
            raise RuntimeError("step must follow reset, got no episode. Call reset first.")
        episode.num_steps += 1
        try:
            outcome = await self._step(episode, action)
        except BrowserFault as fault:
            self._suspect = episode.task, self._pages.browser
            self._episode, self._is_dirty = None, True
            return await self._failed(episode, fault)
        except BaseException:  # a cancelled step too leaves a page in an unknown state
            self._episode, self._is_dirty = None, True
            raise
        self._pool.deadly_pages.ended_well(self._pool.address(episode.task))
        if outcome.is_done:
            self._episode = None
        return outcome

    async def evaluate(self, script: str) -> object:
        """Return the JSON value of a script in the episode's page, such as an oracle's.

        Raises:
            BrowserFault: The script threw, or the page did not answer.
            RuntimeError: There is no episode.
        """
        if self._episode is None:
            raise RuntimeError("evaluate must follow reset, got no episode. Call reset first.")
        return await self._episode.page.evaluate(script)

    async def last_look(self) -> bytes | None:
        """Return what the newest page shows, None where nothing can be seen any more."""
        page = self._pages.newest
        if page is None or not page.is_usable:
            return None
        try:
            return await page.screenshot()
        except BrowserFault:
            return None

    async def aclose(self) -> None:
        """Close the pages and give the slot back; a second time does nothing."""
        self._episode = None
        try:
            await self._pages.clear()
        finally:
            await self._pool.release(self)

    def _blame(self) -> None:
        """Blame the page of the last fault, should its browser have ended with it.

        A page's process can end a moment before its browser does, so this is asked later. Pages of
        the task server are known, and never to blame.
        """
        if self._suspect is not None:
            task, browser = self._suspect
            if browser is not None and not browser.is_alive and not task.is_local:
                self._pool.ended_browser(self._pool.address(task), browser)
        self._suspect = None

    async def _escalate(self, fault: BrowserFault, tried: RecoveryLevel) -> RecoveryLevel | None:
        """Return what to replace next; a browser that hangs is not met with a new page."""
        level, browser = escalate(fault.kind, tried), self._pages.browser
        if (
            level is None
            or level >= RecoveryLevel.BROWSER
            or fault.kind != "timeout"
            or browser is None
        ):
            return level
        is_well = await browser.answers(self._pool.config.deadlines.evaluate_s)
        return level if is_well else RecoveryLevel.BROWSER

    async def _failed(self, episode: _Episode, fault: BrowserFault) -> StepOutcome:
        """Return the end of an episode whose page failed by the policy's doing.

        Raises:
            BrowserFault: `fault`, where browser or driver are not well.
        """
        browser = self._pages.browser
        await asyncio.sleep(_GRACE_S)
        is_well = browser is not None and await browser.is_well(
            self._pool.config.deadlines.evaluate_s
        )
        ending = ending_of(fault, is_page_at_fault=is_well)
        if not ending.is_policys:
            raise fault
        logger.info("%s ends as %s: %s", episode.task.full_name, ending.name, fault.detail)
        return StepOutcome(
            observation=None,
            is_done=True,
            reward=0.0,
            raw_reward=0.0,
            end_reason=cast("EndReason", ending.name),
            events=self._take_events(episode),
        )

    async def _replace(self, level: RecoveryLevel, task: Task) -> bool:
        browser = self._pages.browser
        if level is RecoveryLevel.PAGE:
            await self._pages.drop_page(task)
            return True
        await self._pages.clear()
        return level is RecoveryLevel.CONTEXT or await self._pool.replace(level, browser)

    async def _start(self, task: Task, seed: int) -> Observation:
        page = await self._pages.page_for(task)
        goal = await read_goal(page, task, seed)
        if task.state_script is not None and task.full_name not in self._proven:
            await read_state(page, page, task)  # a script that never works is nobody's failure
            self._proven.add(task.full_name)
        screenshot, marks = await self._first_look(page, task, seed)
        if not task.is_local:
            await check_wall(page)
        observation = Observation(
            screenshot=screenshot,
            marks=marks,
            width=task.viewport.width,
            height=task.viewport.height,
            goal=goal,
            url=without_credentials(page.page.url),
            events=page.events.take(),
        )
        self._episode = _Episode(
            task=task,
            page=page,
            active=page,
            last=observation,
            num_proxy_failures=self._pool.num_proxy_failures,
        )
        return observation

    async def _first_look(self, page: LivePage, task: Task, seed: int) -> _Look:
        frames = self._pool.frames
        if frames is None or not task.is_steady:
            return await self._look(page)
        browser = self._pages.context_of(task).browser
        key = (browser.number, task.url, task.viewport, seed)
        return await frames.get(key, page.screenshot), ()

    async def _look(self, page: LivePage) -> _Look:
        if self._pool.config.is_marked:
            return await marked_screenshot(page)
        return await page.screenshot(), ()

    async def _step(self, episode: _Episode, action: Action | InvalidAction) -> StepOutcome:
        task = episode.task
        is_last = episode.num_steps >= task.max_steps
        if isinstance(action, Answer):
            return self._end(episode, await judge_answer(task, action.text), "answer")
        if isinstance(action, InvalidAction):
            episode.active.events.note("invalid_action", action.reason)
            if not is_last:
                return self._continue(episode, (episode.last.screenshot, episode.last.marks))
        else:
            await self._act(episode, action)
            await self._check_proxy(episode)
        state = await read_state(episode.page, episode.active, task)
        if state.done:
            return self._end(episode, state.reward, "task")
        if is_last:
            return self._end(episode, state.reward, "max_steps")
        return self._continue(episode, await self._look_at_active(episode))

    async def _check_proxy(self, episode: _Episode) -> None:
        """Check that it is not the proxy's doing when the active page did not come.

        Raises:
            BrowserFault: It is, or the page did not answer.
        """
        if self._pool.num_proxy_failures == episode.num_proxy_failures:
            return
        where = str(await episode.active.evaluate("location.href"))
        if episode.active.events.has_failed_to_load or where.startswith(_ERROR_PAGE):
            self._pool.check_proxy(episode.num_proxy_failures)

    async def _look_at_active(self, episode: _Episode) -> _Look:
        """Look at the active page, or at the page below when it just went away."""
        try:
            return await self._look(episode.active)
        except BrowserFault:
            if episode.active is episode.page or episode.active.is_usable:
                raise
            context = self._pages.context_of(episode.task)
            episode.active = await context.active_page(episode.page)
            return await self._look(episode.active)

    async def _act(self, episode: _Episode, action: Action) -> None:
        """Perform `action`, wait until the page has loaded, and find out which page is active now."""
        context, task = self._pages.context_of(episode.task), episode.task
        performer = self._pool.performer
        if isinstance(action, MarkAction):
            found = on_page(action, episode.last.marks, episode.active.viewport)
            if isinstance(found, int):
                episode.active.events.note("no_effect", f"there is no mark {found}")
                return
            action = found
        if isinstance(action, GoBack) and episode.active is not episode.page:
            if not await performer.go_back(episode.active):
                await context.close_top(episode.page)  # a tab's way back is to the page before it
        else:
            await self._perform(episode, action)
        if task.reset != "new_context":
            return
        for _ in range(self._pool.config.max_pages_per_context):
            await wait_until_loaded(episode.active, task.settle_s)
            active = await context.active_page(episode.page)
            if active is episode.active:
                return
            if episode.active is not episode.page:
                episode.page.events.adopt(episode.active.events.take())
            episode.active = active

    async def _perform(self, episode: _Episode, action: Action) -> None:
        """Perform `action` on the active page; a popup that it closes is its effect, no fault."""
        try:
            await self._pool.performer.perform(episode.active, action)
        except BrowserFault as fault:
            explained = await episode.active.explain(fault)
            if episode.active is episode.page or explained.kind != "page_crashed":
                raise explained from fault

    def _continue(self, episode: _Episode, look: _Look) -> StepOutcome:
        events = self._take_events(episode)
        episode.last = msgspec.structs.replace(
            episode.last,
            screenshot=look[0],
            marks=look[1],
            url=without_credentials(episode.active.page.url),
            events=events,
        )
        return StepOutcome(observation=episode.last, is_done=False, events=events)

    def _end(self, episode: _Episode, raw_reward: float, reason: EndReason) -> StepOutcome:
        return StepOutcome(
            observation=None,
            is_done=True,
            reward=1.0 if raw_reward >= episode.task.success_threshold else 0.0,
            raw_reward=raw_reward,
            end_reason=reason,
            events=self._take_events(episode),
        )

    def _take_events(self, episode: _Episode) -> tuple[Event, ...]:
        events = episode.page.events.take()
        return events if episode.active is episode.page else events + episode.active.events.take()
