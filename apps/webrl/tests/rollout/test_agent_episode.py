"""Episodes in a real browser with agents that think or call tools, and what the keys of `[agent]` do."""

from __future__ import annotations

import asyncio
import base64
import io
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from awrl_rollout import (
    EpisodeContext,
    EpisodeRequest,
    GenerateRequest,
    GenerateResult,
    VirtualClock,
)
from PIL import Image
from webrl.browser import BrowserConfig, BrowserPool
from webrl.config import AgentSection, HistorySection
from webrl.policy import InitPolicyConfig, PolicyProcessor, WarmupConfig, init_policy
from webrl.rollout.trajectory import EpisodeTask, Trajectory, decode_trajectory, encode_trajectory
from webrl.rollout.workflow import WebTaskWorkflow, WorkflowConfig
from webrl.tasks import Task, load_task

pytestmark = pytest.mark.browser
REASONING = AgentSection(format="reasoning")


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> PolicyProcessor:
    folder = tmp_path_factory.mktemp("policy")
    init_policy(folder, InitPolicyConfig(warmup=WarmupConfig(num_updates=0)))
    return PolicyProcessor.from_pretrained(folder)


class Says:
    """Answers with texts in turn, the last one again and again; those that end in `+` are cut."""

    def __init__(self, processor: PolicyProcessor, *texts: str) -> None:
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
        ids = tuple(self._processor.encode(text.removesuffix("+")))
        return GenerateResult(
            output_ids=ids,
            logprobs=(-0.5,) * len(ids),
            versions=(3,) * len(ids),
            stop_reason="length" if text.endswith("+") else "stop",
        )


def play(
    processor: PolicyProcessor,
    policy: Says,
    task: Task,
    agent: AgentSection,
    **changes: Any,
) -> Trajectory:
    """Return what became of an episode."""

    async def main() -> Trajectory:
        async with BrowserPool(BrowserConfig(num_slots=1, wait_s=0.1)) as pool:
            workflow = WebTaskWorkflow(
                pool=pool,
                generator=policy,
                pixels=None,
                processor=processor,
                config=replace(WorkflowConfig(agent=agent, max_new_tokens=64), **changes),
            )
            context = EpisodeContext(slot=0, worker="w", attempt=0, clock=VirtualClock())
            payload = EpisodeTask(definition=task, seed=5)
            request = EpisodeRequest(episode_id="7/0", group_id="7", payload=payload)
            try:
                result = await workflow(request, context)
            finally:
                await workflow.aclose()
        assert result is not None
        assert isinstance(result.payload, Trajectory)
        assert result.reward == result.payload.reward
        assert decode_trajectory(encode_trajectory(result.payload)) == result.payload
        return result.payload

    return asyncio.run(main())


def task_of(name: str, max_steps: int) -> Task:
    return msgspec.structs.replace(load_task(name), max_steps=max_steps)


def test_a_policy_that_thinks_is_told_its_thoughts_its_memory_and_what_came_of_its_actions(
    processor: PolicyProcessor,
) -> None:
    policy = Says(
        processor,
        "<thought>Open it.</thought><memory>try one</memory><action>left_click(250, 250)</action>",
        "<thought>Look.</thought><action>wait()</action>",
        "<thought>What now?</thought>",
        "<thought>Wait.</thought><memory></memory><action>wait()</action>",
    )
    trajectory = play(processor, policy, task_of("fault/alert", 5), REASONING)
    first, second, third, fourth, fifth = policy.prompts
    assert "Actions left: 5\n" in first
    assert "Memory:" not in first
    assert (
        "Memory:\ntry one\nPrevious actions:\nleft_click(250, 250)\n  thought: Open it.\n"
        "  dialog: alert 'hello' accepted\n"
    ) in second
    assert "wait()\n  thought: Look.\n  no_change: page and address are as before\n" in third
    assert "no action\n  thought: What now?\n  invalid_action: reply must hold an action" in fourth
    assert "Memory:\ntry one\n" in fourth
    assert "Memory:" not in fifth
    steps = trajectory.steps
    assert [step.thought for step in steps[:3]] == ["Open it.", "Look.", "What now?"]
    assert [step.memory for step in steps[:4]] == ["try one", None, None, ""]
    assert [step.is_valid for step in steps[:4]] == [True, True, False, True]


def test_several_screenshots_and_calls_of_tools_are_one_chat(processor: PolicyProcessor) -> None:
    call = '<tool_call>\n{"name": "computer_use", "arguments": {"action": "wait"}}\n</tool_call>'
    policy = Says(processor, f"I wait.\n{call}")
    agent = AgentSection(format="tool_call", images=2)
    trajectory = play(processor, policy, task_of("fault/plain", 3), agent)
    assert [len(request.images) for request in policy.requests] == [1, 2, 2]
    assert [len(step.images) for step in trajectory.steps] == [1, 2, 2]
    assert [step.thought for step in trajectory.steps] == ["I wait."] * 3
    assert all(step.is_valid and step.is_in_form for step in trajectory.steps)
    last = policy.prompts[-1].rpartition("Goal: ")[2]
    assert "Previous actions:\nwait()\n  thought: I wait.\n" in last
    assert "assistant\nI wait.\ntool\nno_change: page and address are as before\n" in last


def test_so_many_replies_without_an_action_one_after_another_end_the_episode(
    processor: PolicyProcessor,
) -> None:
    replies = ["<action>wait()</action>", "hm", "<action>wait()</action>", "hm", "hm"]
    agent = AgentSection(format="reasoning", invalid_limit=2)
    task = task_of("fault/plain", 9)
    trajectory = play(processor, Says(processor, *replies), task, agent)
    assert (trajectory.ending, trajectory.outcome, trajectory.reward) == (
        "invalid_limit",
        "failure",
        0,
    )
    assert len(trajectory.steps) == 5


def test_replies_out_of_form_or_cut_cost_what_the_keys_say(processor: PolicyProcessor) -> None:
    replies = ["<thought>x</thought><action>wait()</action>", "wait()", "hm", "hm+"]
    task = task_of("fault/plain", 4)
    agent = AgentSection(format="reasoning", format_penalty=0.4, truncated_penalty=0.2)
    trajectory = play(processor, Says(processor, *replies), task, agent)
    assert trajectory.outcome == "failure"
    assert trajectory.reward == pytest.approx(-0.4 * 3 / 4 - 0.2 / 4)
    assert [step.is_in_form for step in trajectory.steps] == [True, False, False, False]
    assert [step.is_truncated for step in trajectory.steps] == [False, False, False, True]
    free = play(processor, Says(processor, *replies), task, REASONING)
    assert free.reward == 0


def test_an_answer_that_was_cut_is_marked_told_and_left_out_of_training_by_key(
    processor: PolicyProcessor,
) -> None:
    policy = Says(processor, "<thought>The page+", "wait()")
    agent = AgentSection(format="reasoning", train_truncated=False)
    trajectory = play(processor, policy, task_of("fault/plain", 2), agent)
    assert [step.is_trainable for step in trajectory.steps] == [False, True]
    assert "invalid_action: the answer was cut, as it was too long" in policy.prompts[1]
    both = play(
        processor, Says(processor, "<thought>The page+"), task_of("fault/plain", 2), REASONING
    )
    assert [step.is_trainable for step in both.steps] == [True, True]


def test_a_screenshot_is_made_smaller_before_anyone_sees_it(processor: PolicyProcessor) -> None:
    policy = Says(processor, "wait()")
    agent = AgentSection(max_pixels=80 * 112)
    trajectory = play(processor, policy, task_of("fault/plain", 2), agent)
    task = load_task("fault/plain")
    for request, step in zip(policy.requests, trajectory.steps, strict=True):
        (uri,) = request.images
        data = base64.b64decode(str(uri).partition(",")[2])
        with Image.open(io.BytesIO(data)) as image:
            assert image.width * image.height <= 80 * 112
            assert image.size == (step.images[0].width, step.images[0].height)
            shape = image.width / image.height
        assert shape == pytest.approx(task.viewport.width / task.viewport.height, rel=0.05)


def test_a_memory_that_leaves_no_room_is_the_policys_failure(processor: PolicyProcessor) -> None:
    memory = "price " * 300
    policy = Says(processor, f"<memory>{memory}</memory><action>wait()</action>")
    agent = AgentSection(format="reasoning", history=HistorySection(memory_chars=9000))
    task = task_of("fault/plain", 5)
    trajectory = play(processor, policy, task, agent, context_length=600)
    assert (trajectory.ending, trajectory.outcome) == ("prompt_full", "failure")
    assert len(trajectory.steps) == 1
