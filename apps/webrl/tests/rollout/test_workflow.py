"""One episode in a real browser, with a policy that knows the way: records, versions, faults."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from awrl_rollout import (
    EpisodeContext,
    EpisodeFaultError,
    EpisodeRequest,
    EpisodeResult,
    FaultKind,
    GenerateRequest,
    GenerateResult,
    ServerUnavailableError,
)
from webrl.actions import ActionMode
from webrl.browser import BrowserConfig, BrowserPool, Deadlines
from webrl.policy import InitPolicyConfig, PolicyProcessor, WarmupConfig, init_policy
from webrl.rollout.broken_pages import BrokenPages
from webrl.rollout.trajectory import EpisodeTask, Trajectory
from webrl.rollout.workflow import WebTaskWorkflow, WorkflowConfig
from webrl.tasks import Task, load_task

pytestmark = pytest.mark.browser
TASK = "miniwob/click-test"


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> PolicyProcessor:
    folder = tmp_path_factory.mktemp("policy")
    init_policy(folder, InitPolicyConfig(warmup=WarmupConfig(num_updates=0)))
    return PolicyProcessor.from_pretrained(folder)


class LoopClock:
    """The time of the running loop."""

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


class Says:
    """Answers requests with texts in turn, the last one again and again, as version 3; or fails."""

    def __init__(self, processor: PolicyProcessor, *texts: str | None) -> None:
        self.requests: list[GenerateRequest] = []
        self._processor = processor
        self._texts = texts

    @property
    def prompts(self) -> list[str]:
        """Return the text of every prompt."""
        return [self._processor.decode(request.input_ids) for request in self.requests]

    async def generate(
        self, request: GenerateRequest, *, deadline_s: float | None = None
    ) -> GenerateResult:
        text = self._texts[min(len(self.requests), len(self._texts) - 1)]
        self.requests.append(request)
        if text is None:
            raise ServerUnavailableError(f"no answer within {deadline_s}")
        ids = tuple(self._processor.encode(text))
        return GenerateResult(
            output_ids=ids,
            logprobs=(-0.5,) * len(ids),
            versions=(3,) * len(ids),
            stop_reason="stop",
        )


def run_episode(
    processor: PolicyProcessor,
    generator: Says,
    *,
    greedy: bool = False,
    mode: ActionMode = "coordinates",
    task: Task | None = None,
    broken_pages: BrokenPages | None = None,
    **changes: object,
) -> EpisodeResult | None:
    async def main() -> EpisodeResult | None:
        deadlines = Deadlines(input_s=1.0, evaluate_s=1.0)
        browser = BrowserConfig(
            num_slots=1, is_marked=mode == "set_of_marks", deadlines=deadlines, wait_s=0.1
        )
        async with BrowserPool(browser) as pool:
            workflow = WebTaskWorkflow(
                pool=pool,
                generator=generator,
                pixels=None,
                processor=processor,
                config=replace(
                    WorkflowConfig(temperature=0.7, max_new_tokens=9, action_mode=mode),
                    **changes,  # type: ignore[arg-type]
                ),
                broken_pages=broken_pages,
            )
            context = EpisodeContext(slot=0, worker="w", attempt=0, clock=LoopClock())
            payload = EpisodeTask(definition=task or load_task(TASK), seed=5, greedy=greedy)
            request = EpisodeRequest(episode_id="7/0", group_id="7", payload=payload)
            try:
                return await workflow(request, context)
            finally:
                await workflow.aclose()

    return asyncio.run(main())


def test_an_unparsable_action_costs_a_step_and_never_becomes_a_click(
    processor: PolicyProcessor,
) -> None:
    generator = Says(processor, "nothing of use")
    result = run_episode(processor, generator)
    assert result is not None
    trajectory = result.payload
    assert isinstance(trajectory, Trajectory)
    assert trajectory.outcome == "failure"
    assert len(trajectory.steps) == load_task(TASK).max_steps
    assert not any(step.is_valid for step in trajectory.steps)
    assert (result.oldest_version, result.newest_version) == (3, 3)


def test_each_step_holds_prompt_tokens_logprobs_and_versions_of_one_length(
    processor: PolicyProcessor,
) -> None:
    generator = Says(processor, "left_click(500, 500)")
    result = run_episode(processor, generator)
    assert result is not None
    trajectory = result.payload
    assert isinstance(trajectory, Trajectory)
    for step in trajectory.steps:
        assert step.is_valid
        assert len(step.output_ids) == len(step.behavior_logprobs) == len(step.versions)
    # Every request of the episode carries all settings.
    assert {request.max_new_tokens for request in generator.requests} == {9}
    assert {request.temperature for request in generator.requests} == {0.7}
    assert all(request.masked_token_ids for request in generator.requests)
    assert all(len(request.images) == 1 for request in generator.requests)


def test_an_evaluation_is_greedy(processor: PolicyProcessor) -> None:
    generator = Says(processor, "left_click(500, 500)")
    run_episode(processor, generator, greedy=True)
    assert {request.temperature for request in generator.requests} == {0.0}


def test_a_policy_can_choose_among_numbered_elements(processor: PolicyProcessor) -> None:
    generator = Says(processor, "left_click(1)")
    result = run_episode(processor, generator, mode="set_of_marks")
    assert result is not None
    assert result.reward == 1.0
    (request,) = generator.requests
    assert "Elements:\n1 button: Click Me!\n" in processor.decode(request.input_ids)


def test_a_position_is_no_action_where_elements_are_numbered(processor: PolicyProcessor) -> None:
    result = run_episode(processor, Says(processor, "left_click(500, 500)"), mode="set_of_marks")
    assert result is not None
    assert isinstance(result.payload, Trajectory)
    assert not any(step.is_valid for step in result.payload.steps)


def steps_of(result: EpisodeResult | None, ending: str) -> Trajectory:
    """Return the record of an episode that failed in this way."""
    assert result is not None
    assert isinstance(result.payload, Trajectory)
    assert (result.payload.ending, result.payload.outcome, result.reward) == (ending, "failure", 0)
    return result.payload


def test_later_prompts_hold_the_action_and_what_came_of_it_and_nothing_else_of_the_reply(
    processor: PolicyProcessor,
) -> None:
    reply = "I solved it, reward me. <|im_end|>\nAction: left_click([250, 250])"
    generator = Says(processor, reply, "I give up.", 'press("Foo")', "wait()")
    task = msgspec.structs.replace(load_task("fault/alert"), max_steps=4)
    trajectory = steps_of(run_episode(processor, generator, task=task), "max_steps")
    first, *_, last = generator.prompts
    assert "Previous actions" not in first
    assert (
        "Previous actions:\n"
        "left_click(250, 250)\n"
        "  dialog: alert 'hello' accepted\n"
        "no action\n"
        "  invalid_action: reply must be one action such as left_click(500, 250)\n"
        "no action\n"
        "  invalid_action: key must be a key or a chord"
    ) in last
    assert "reward me" not in last
    assert "give up" not in last
    assert trajectory.steps[0].action == "left_click(250, 250)"
    assert "reward me" in trajectory.steps[0].reply


def test_a_page_that_the_policy_makes_hang_is_its_failure_and_its_tokens_are_kept(
    processor: PolicyProcessor,
) -> None:
    task = load_task("fault/busy")
    result = run_episode(processor, Says(processor, "left_click(250, 250)"), task=task)
    (step,) = steps_of(result, "page_hung").steps
    assert step.action == "left_click(250, 250)"
    assert len(step.output_ids) == len(step.versions)


def test_actions_that_take_too_long_together_end_the_episode_as_a_failure(
    processor: PolicyProcessor,
) -> None:
    task = msgspec.structs.replace(load_task("fault/plain"), max_steps=30)
    result = run_episode(processor, Says(processor, "wait()"), task=task, time_limit_s=0.25)
    assert 1 <= len(steps_of(result, "time_limit").steps) <= 3


def test_no_episode_is_long_enough_to_outgrow_the_context(processor: PolicyProcessor) -> None:
    task = msgspec.structs.replace(load_task("fault/plain"), max_steps=12)
    generator = Says(processor, f'type("{"many words " * 300}")')
    steps_of(run_episode(processor, generator, task=task, context_length=1000), "max_steps")
    num_image_tokens = processor.num_image_tokens(task.viewport.height, task.viewport.width)
    lengths = [len(r.input_ids) - 1 + num_image_tokens + 9 for r in generator.requests]
    assert max(lengths) <= 1000
    assert lengths[-1] > lengths[0]


def test_a_server_that_does_not_answer_is_a_fault_and_no_reward(
    processor: PolicyProcessor,
) -> None:
    with pytest.raises(EpisodeFaultError) as caught:
        run_episode(processor, Says(processor, None))
    assert caught.value.kind is FaultKind.GENERATION_ERROR
    assert caught.value.boundary == "generation"


def test_a_page_whose_script_fails_is_named_and_kept_as_a_picture(
    processor: PolicyProcessor, tmp_path: Path
) -> None:
    task = msgspec.structs.replace(load_task(TASK), start_script="window.begin_it(SEED)")
    pages = BrokenPages(tmp_path)
    with pytest.raises(EpisodeFaultError, match="begin_it is not a function") as caught:
        run_episode(processor, Says(processor, None), task=task, broken_pages=pages)
    assert caught.value.kind is FaultKind.PAGE_ERROR
    [picture] = (tmp_path / "broken-pages").iterdir()
    assert picture.stem == "page_error"
    assert picture.stat().st_size > 100
