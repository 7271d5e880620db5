"""A task with a rubric from the file to the reward: real Chromium, a real judge server on loopback."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from awrl_rollout import (
    EpisodeContext,
    EpisodeFaultError,
    EpisodeRequest,
    EpisodeResult,
    FaultKind,
    GenerateRequest,
    GenerateResult,
    RetryPolicy,
    VirtualClock,
    WorkflowExecutor,
)
from PIL import Image
from webrl.browser import BrowserConfig, BrowserPool
from webrl.config import JudgeSection
from webrl.judge import ChatClient, Judge, JudgedFolder, read_judged
from webrl.policy import InitPolicyConfig, PolicyProcessor, WarmupConfig, init_policy
from webrl.rollout.trajectory import EpisodeTask, Trajectory, decode_trajectory, encode_trajectory
from webrl.rollout.workflow import WebTaskWorkflow, WorkflowConfig
from webrl.tasks import TaskServer, load_webgym_file

pytestmark = pytest.mark.browser

_PAGES = {
    "/shop": "<title>Shop</title><a href=/lamp style='position:fixed;left:0;top:0;width:640px;"
    "height:360px;background:#ddd'>lamps</a>",
    "/lamp": "<title>Lamp</title><body style='background:#c00;color:#fff'>red lamp, 19 dollars",
}
_STEPS = ("left_click(250, 250)", 'answer("19 dollars")')
_LINE = {
    "task_id": "t1",
    "task_name": "What does the red lamp cost?",
    "website": "/shop",
    "difficulty": "hard",
    "evaluator_reference": ["The red lamp is shown"],
    "reference_answer": "19 dollars",
}

Reply = Callable[[str, list[bytes]], str | int]


class Says:
    """A policy that gives these replies in turn, the last one again and again."""

    def __init__(self, processor: PolicyProcessor, texts: tuple[str, ...]) -> None:
        self.requests: list[GenerateRequest] = []
        self._processor = processor
        self._texts = texts

    async def generate(
        self, request: GenerateRequest, *, deadline_s: float | None = None
    ) -> GenerateResult:
        text = self._texts[min(len(self.requests), len(self._texts) - 1)]
        self.requests.append(request)
        ids = tuple(self._processor.encode(text))
        return GenerateResult(
            output_ids=ids,
            logprobs=(-0.5,) * len(ids),
            versions=(3,) * len(ids),
            stop_reason="stop",
        )


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> PolicyProcessor:
    folder = tmp_path_factory.mktemp("policy")
    init_policy(folder, InitPolicyConfig(warmup=WarmupConfig(num_updates=0)))
    return PolicyProcessor.from_pretrained(folder)


def _verdict(is_true: bool) -> str:
    return json.dumps({"reason": "seen", "verdict": is_true})


def _looks(text: str, images: list[bytes]) -> str:
    """Judge by the pixels: yes where the last screenshot is the red page of the lamp."""
    if "shut the agent out" in text:
        return _verdict(False)
    if "The reference answer" in text:
        return _verdict(text.count('"19 dollars"') == 2)
    red, green, _ = np.asarray(Image.open(io.BytesIO(images[-1])).convert("RGB"))[600, 600]
    return _verdict(bool(red > 150 > green))


async def _site(request: web.BaseRequest) -> web.StreamResponse:
    return web.Response(text=_PAGES[request.path], content_type="text/html")


def _app(reply: Reply) -> web.Application:
    async def complete(request: web.Request) -> web.Response:
        parts = (await request.json())["messages"][1]["content"]
        urls = [part["image_url"]["url"] for part in parts[1:]]
        images = [base64.b64decode(url.partition(",")[2]) for url in urls]
        found = reply(parts[0]["text"], images)
        if isinstance(found, int):
            return web.Response(status=found)
        return web.json_response({"choices": [{"message": {"content": found}}]})

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/chat/completions", complete)
    return app


def _episode(
    processor: PolicyProcessor, file: Path, reply: Reply, texts: tuple[str, ...] = _STEPS
) -> Trajectory:
    """Run one episode of the file's task and return its record."""

    async def main() -> Trajectory:
        runner = web.AppRunner(_app(reply))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        config = JudgeSection(url=url, model="m", max_retries=1, max_outage_s=0.0)
        client = ChatClient(config, retry=RetryPolicy(base_delay_s=0.0))
        (task,) = load_webgym_file(file).tasks
        async with (
            aclosing(Judge(config, client=client)) as judge,
            TaskServer(routes={"/": _site}) as site,
            BrowserPool(BrowserConfig(num_slots=1), server=site) as pool,
        ):
            workflow = WebTaskWorkflow(
                pool=pool,
                generator=Says(processor, texts),
                pixels=None,
                processor=processor,
                config=WorkflowConfig(),
                judge=judge,
                judged=JudgedFolder(file.parent / "judged", 1 << 26),
            )
            payload = EpisodeTask(definition=task, seed=0)
            request = EpisodeRequest(episode_id="7/0", group_id="7", payload=payload)
            context = EpisodeContext(slot=0, worker="w", attempt=0, clock=VirtualClock())
            try:
                result = await workflow(request, context)
            finally:
                await workflow.aclose()
                await runner.cleanup()
        assert result is not None
        assert isinstance(result.payload, Trajectory)
        assert result.reward == result.payload.reward
        return result.payload

    return asyncio.run(main())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(_LINE))
    return path


def test_an_answer_is_judged_by_what_the_screenshots_show(
    processor: PolicyProcessor, file: Path
) -> None:
    found = _episode(processor, file, _looks)
    assert (found.outcome, found.reward, found.raw_reward) == ("success", 1.0, 1.0)
    assert [step.action for step in found.steps] == list(_STEPS)
    assert found.verdict is not None
    names = [(c.name, c.is_met) for c in found.verdict.criteria]
    assert names == [("supported", True), ("fact 1", True), ("reference", True)]
    assert decode_trajectory(encode_trajectory(found)) == found
    (kept,) = read_judged(file.parent)
    assert (kept.episode_id, kept.verdict) == ("7/0", found.verdict)
    assert (kept.evidence.answer, kept.models["fact"]) == ("19 dollars", "m")
    assert len(kept.evidence.screenshots) == len(found.steps)


def test_the_same_answer_from_the_wrong_page_earns_nothing(
    processor: PolicyProcessor, file: Path
) -> None:
    found = _episode(processor, file, _looks, _STEPS[1:])
    assert (found.outcome, found.reward) == ("failure", 0.0)
    assert found.verdict is not None
    assert [c.is_met for c in found.verdict.criteria] == [False, False, True]
    assert found.raw_reward == pytest.approx(1 / 3)


def test_an_episode_without_an_answer_is_a_failure(processor: PolicyProcessor, file: Path) -> None:
    found = _episode(processor, file, _looks, ("hover(900, 900)",))
    assert (found.outcome, found.reward, len(found.steps)) == ("failure", 0.0, 30)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (500, FaultKind.JUDGE_ERROR),
        ("SUCCESS", FaultKind.JUDGE_ERROR),
        (_verdict(True), FaultKind.SITE_BLOCKED),
    ],
)
def test_no_verdict_and_a_blocked_site_are_faults_and_no_rewards(
    processor: PolicyProcessor, file: Path, reply: str | int, kind: FaultKind
) -> None:
    with pytest.raises(EpisodeFaultError) as caught:
        _episode(processor, file, lambda text, images: reply)
    assert caught.value.kind is kind
    assert caught.value.boundary == "judge"
    (kept,) = read_judged(file.parent)
    assert (kept.verdict is not None) == (kind is FaultKind.SITE_BLOCKED)


def test_a_judge_that_is_down_stops_no_browser(processor: PolicyProcessor, file: Path) -> None:
    async def main() -> None:
        is_up, played = asyncio.Event(), asyncio.Event()

        def reply(text: str, images: list[bytes]) -> str | int:
            return _looks(text, images) if is_up.is_set() else 503

        runner = web.AppRunner(_app(reply))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        config = JudgeSection(url=url, model="m", max_retries=0)
        at_once = RetryPolicy(base_delay_s=0.01)
        client = ChatClient(config, retry=at_once)
        policy = Says(processor, _STEPS * 3)
        (task,) = load_webgym_file(file).tasks
        async with (
            aclosing(Judge(config, client=client, probe=at_once)) as judge,
            TaskServer(routes={"/": _site}) as site,
            BrowserPool(BrowserConfig(num_slots=1), server=site) as pool,
        ):
            workflow = WebTaskWorkflow(
                pool=pool,
                generator=policy,
                pixels=None,
                processor=processor,
                config=WorkflowConfig(),
                judge=judge,
            )

            async def run(request: EpisodeRequest, context: EpisodeContext) -> EpisodeResult | None:
                if request.episode_id == "last":
                    played.set()
                return await workflow(request, context)

            payload = EpisodeTask(definition=task, seed=0)
            ids = ["first", "second", "last"]
            async with WorkflowExecutor(run, num_slots=1, max_detached=2) as executor:
                executor.submit(
                    EpisodeRequest(episode_id=name, group_id=name, payload=payload) for name in ids
                )
                await played.wait()
                seen = executor.statistics()
                assert (seen.num_detached, seen.num_ended) == (2, 0)
                is_up.set()
                records = await executor.wait(ids, timeout_s=60)
            await workflow.aclose()
        await runner.cleanup()
        assert [record.reward for record in records] == [1.0, 1.0, 1.0]
        assert len(policy.requests) == 2 * len(ids)  # nothing was run again

    asyncio.run(main())
