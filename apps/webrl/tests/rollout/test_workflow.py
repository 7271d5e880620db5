"""One episode in a real browser, with a policy that knows the way: records, versions, faults."""

from __future__ import annotations

import asyncio

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
    VirtualClock,
)
from webrl.actions import ActionMode
from webrl.browser import BrowserConfig, BrowserPool
from webrl.policy import InitPolicyConfig, PolicyProcessor, WarmupConfig, init_policy
from webrl.rollout.trajectory import EpisodeTask, Trajectory
from webrl.rollout.workflow import WebTaskWorkflow, WorkflowConfig
from webrl.tasks import load_task

pytestmark = pytest.mark.browser
TASK = "miniwob/click-test"


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> PolicyProcessor:
    folder = tmp_path_factory.mktemp("policy")
    init_policy(folder, InitPolicyConfig(warmup=WarmupConfig(num_updates=0)))
    return PolicyProcessor.from_pretrained(folder)


class Says:
    """Answers every request with one text, as version 3; or fails."""

    def __init__(self, processor: PolicyProcessor, text: str | None) -> None:
        self.requests: list[GenerateRequest] = []
        self._processor = processor
        self._text = text

    async def generate(
        self, request: GenerateRequest, *, deadline_s: float | None = None
    ) -> GenerateResult:
        self.requests.append(request)
        if self._text is None:
            raise ServerUnavailableError(f"no answer within {deadline_s}")
        ids = tuple(self._processor.encode(self._text))
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
) -> EpisodeResult | None:
    async def main() -> EpisodeResult | None:
        browser = BrowserConfig(num_slots=1, is_marked=mode == "set_of_marks")
        async with BrowserPool(browser) as pool:
            workflow = WebTaskWorkflow(
                pool=pool,
                generator=generator,
                pixels=None,
                processor=processor,
                config=WorkflowConfig(temperature=0.7, max_new_tokens=9, action_mode=mode),
            )
            context = EpisodeContext(slot=0, worker="w", attempt=0, clock=VirtualClock())
            payload = EpisodeTask(definition=load_task(TASK), seed=5, greedy=greedy)
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


def test_a_server_that_does_not_answer_is_a_fault_and_no_reward(
    processor: PolicyProcessor,
) -> None:
    with pytest.raises(EpisodeFaultError) as caught:
        run_episode(processor, Says(processor, None))
    assert caught.value.kind is FaultKind.GENERATION_ERROR
    assert caught.value.boundary == "generation"
