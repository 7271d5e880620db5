"""The web and the judge of a rehearsal, as browsers and the real client meet them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from awrl_rollout import RetryPolicy
from webrl.actions import LeftClick
from webrl.browser import BrowserConfig, BrowserPool
from webrl.config import JudgeSection
from webrl.errors import BrowserFault, JudgeError
from webrl.judge import ChatClient, Evidence, Judge
from webrl.rehearse.judge import RehearsedJudge
from webrl.rehearse.outside import OutsideConfig
from webrl.rehearse.site import RehearsedSite
from webrl.rehearse.stub import DOWN_PATH
from webrl.tasks import Rubric, load_webgym_file


def evidence(number: int) -> Evidence:
    rubric = Rubric(facts=("The lamp is shown",), reference_answer="19 dollars")
    pages = tuple(f"data:image/png;base64,{number}{page}" for page in range(5))
    return Evidence(
        goal=f"goal {number}", rubric=rubric, actions=(), answer="yes", screenshots=pages
    )


def test_the_real_client_gets_a_verdict_through_failed_and_malformed_answers() -> None:
    async def scenario() -> tuple[int, int, int]:
        async with RehearsedJudge(latency_s=0.0, error_share=0.2, seed=3) as stub:
            config = JudgeSection(url=stub.url, model="m", max_retries=8, max_screenshots=2)
            client = ChatClient(config, retry=RetryPolicy(base_delay_s=0.0))
            judge = Judge(config, client=client)
            verdicts = [await judge.judge(evidence(number)) for number in range(40)]
            await judge.aclose()
        good = [v for v in verdicts if v.criteria and all(c.is_met for c in v.criteria)]
        return len(good), sum(v.is_blocked for v in verdicts), stub.num_errors

    num_good, num_blocked, num_errors = asyncio.run(scenario())
    assert 8 < num_good < 32
    assert num_blocked < 5
    assert num_errors > 10


def test_a_judge_that_is_down_gives_no_verdict_and_then_gives_one() -> None:
    async def scenario() -> None:
        async with RehearsedJudge(latency_s=0.0, error_share=0.0) as stub:
            config = JudgeSection(url=stub.url, model="m", max_retries=0, max_outage_s=0.0)
            judge = Judge(config)
            async with aiohttp.ClientSession() as session:
                await session.post(f"{stub.base_url}{DOWN_PATH}?seconds=600")
                with pytest.raises(JudgeError, match="1 attempts"):
                    await judge.judge(evidence(1))
                await session.post(f"{stub.base_url}{DOWN_PATH}?seconds=0")
            await judge.judge(evidence(1))
            await judge.aclose()

    asyncio.run(scenario())


@pytest.mark.browser
def test_a_browser_walks_through_a_site_and_meets_the_wall_of_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        sites = RehearsedSite(num_sites=4, latency_s=0.0, blocked_share=0.25)
        async with sites, BrowserPool(BrowserConfig(num_slots=1)) as pool:
            sites.write_tasks(tmp_path / "tasks.jsonl", 4)
            tasks = load_webgym_file(tmp_path / "tasks.jsonl").tasks
            (blocked,) = sites.blocked
            session = await pool.session()
            with pytest.raises(BrowserFault, match="status 403") as caught:
                await session.reset(tasks[blocked], 0)
            assert caught.value.kind == "blocked"
            first = await session.reset(tasks[blocked - 1], 0)
            link = LeftClick(x=(320 + 150) * 1000 // 1280, y=(60 + 100) * 1000 // 720)
            second = await session.step(link)
            assert second.observation is not None
            assert second.observation.screenshot != first.screenshot
            await session.aclose()

    asyncio.run(scenario())


def test_the_process_says_where_it_listens_and_ends_with_its_starter(tmp_path: Path) -> None:
    config = OutsideConfig(tasks=str(tmp_path / "tasks.jsonl"), num_tasks=6, num_sites=3)
    process = subprocess.Popen(
        [sys.executable, "-m", "webrl.rehearse.outside", *config.arguments()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    places = json.loads(process.stdout.readline())
    tasks = load_webgym_file(config.tasks).tasks
    assert [task.url.removeprefix(places["site"]) for task in tasks[:3]] == [
        "/site/0/0",
        "/site/1/0",
        "/site/2/0",
    ]
    assert all(task.allow_private for task in tasks)
    process.stdin.close()
    assert process.wait(20) == 0
