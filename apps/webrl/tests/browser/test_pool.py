"""The pool: slots, starts, what each death costs, and what is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from webrl.actions import LeftClick
from webrl.browser import BrowserConfig, BrowserPool, BrowserSession, Deadlines, StepOutcome
from webrl.browser.processes import make_private_folder, owned_processes, sweep_leftovers
from webrl.errors import BrowserFault, PreflightError, RunFailedError
from webrl.tasks import Task, load_task

pytestmark = pytest.mark.browser

TASK = load_task("miniwob/click-test-2")
DEADLINES = Deadlines(close_s=1.0, evaluate_s=2.0, input_s=2.0, screenshot_s=2.0, create_s=5.0)
CLEAN = Task(suite="web", name="clean", url="/miniwob/click-test.html", goal="g", answer="x")
MISS = LeftClick(990, 990)


def _pool(num_slots: int = 2, **changes: object) -> BrowserPool:
    return BrowserPool(
        BrowserConfig(num_slots=num_slots, deadlines=DEADLINES, **changes)  # type: ignore[arg-type]
    )


async def _one_episode(session: BrowserSession, task: Task = TASK) -> StepOutcome:
    await session.reset(task, 1)
    return await session.step(MISS)


def _descendants() -> set[int]:
    # But for Python's own helper, which other tests start.
    below = psutil.Process().children(recursive=True)
    return {p.pid for p in below if not any("resource_tracker" in w for w in p.cmdline())}


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _gone(pids: set[int]) -> bool:
    deadline = time.monotonic() + 5
    while any(map(_is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(_is_alive, pids))


def test_a_pool_leaves_no_process_and_no_folder() -> None:
    async def main() -> tuple[set[int], Path]:
        async with _pool() as pool, await pool.session() as session:
            await _one_episode(session)
            browser = await pool.browser()
            return _descendants(), browser.driver.folder

    pids, folder = asyncio.run(main())
    assert len(pids) >= 4
    assert _gone(pids)
    assert not folder.exists()


def test_five_first_uses_at_once_start_one_browser() -> None:
    # Two coroutines created the browser at once, and one of the two was orphaned.
    async def main() -> tuple[int, int, int]:
        async with _pool(num_slots=5) as pool:
            sessions = [await pool.session() for _ in range(5)]
            async with asyncio.TaskGroup() as group:
                for session in sessions:
                    group.create_task(_one_episode(session))
            statistics = pool.statistics()
            return (
                statistics.num_driver_starts,
                statistics.num_browser_launches,
                statistics.num_contexts,
            )

    assert asyncio.run(main()) == (1, 1, 5)


def test_a_launch_that_fails_half_way_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # The driver had started, the second stage failed, and nothing closed the first.
    async def main() -> tuple[list[str], set[int], Path]:
        async with _pool() as pool, await pool.session() as session:
            await _one_episode(session)
            browser = await pool.browser()
            before = _descendants()
            monkeypatch.setattr("webrl.browser.live_browser._process_id", fail)
            browser.is_retired = True
            kinds: list[str] = []
            for _ in range(3):
                with pytest.raises(BrowserFault) as caught:
                    await session.reset(TASK, 1)
                kinds.append(caught.value.kind)
            return kinds, _descendants() - before, browser.driver.folder

    async def fail(*_: object) -> int:
        raise BrowserFault("browser_lost", "second stage failed")

    kinds, left, _ = asyncio.run(main())
    assert kinds == ["browser_lost"] * 3
    browsers = [pid for pid in left if psutil.pid_exists(pid)]
    assert browsers == []


def test_no_browser_at_all_is_said_at_once() -> None:
    async def main() -> None:
        pool = _pool(executable_path="/nonexistent/chromium")
        async with pool, await pool.session() as session:
            await session.reset(TASK, 1)

    with pytest.raises(BrowserFault, match="nonexistent"):
        asyncio.run(main())


def test_a_wrong_setting_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWRL_CHROMIUM", "/nonexistent/chromium")

    async def main() -> None:
        async with _pool() as pool, await pool.session() as session:
            await session.reset(TASK, 1)

    with pytest.raises(PreflightError, match="AWRL_CHROMIUM must be the path"):
        asyncio.run(main())
    assert _gone(_descendants())


def test_a_killed_browser_costs_its_own_episodes_only() -> None:
    async def main() -> tuple[list[str], list[bool], int]:
        async with _pool() as pool:
            one, two = await pool.session(), await pool.session()
            task = load_task("miniwob/click-button-sequence")
            await one.reset(task, 1)
            await two.reset(task, 2)
            pid = (await pool.browser()).pid
            os.kill(pid, signal.SIGKILL)
            kinds: list[str] = []
            for session in (one, two):
                with pytest.raises(BrowserFault) as caught:
                    await session.step(MISS)
                kinds.append(caught.value.kind)
            again = [(await _one_episode(session)).is_done for session in (one, two)]
            return kinds, again, pool.statistics().num_browser_launches

    assert asyncio.run(main()) == (["browser_lost"] * 2, [True, True], 2)


def test_a_killed_driver_is_replaced_with_its_browser() -> None:
    async def main() -> tuple[str, bool, int, bool]:
        async with _pool() as pool, await pool.session() as session:
            await session.reset(load_task("miniwob/click-button-sequence"), 1)
            browser = await pool.browser()
            parent = psutil.Process(browser.pid).parent()
            assert parent is not None
            folder, pids = browser.driver.folder, _descendants()
            parent.kill()
            psutil.wait_procs([psutil.Process(browser.pid)], 5)
            with pytest.raises(BrowserFault) as caught:
                await session.step(MISS)
            done = (await _one_episode(session)).is_done
            starts = pool.statistics().num_driver_starts
            assert _gone(pids)
            return caught.value.kind, done, starts, folder.exists()

    kind, done, starts, is_left = asyncio.run(main())
    assert kind in ("browser_lost", "driver_lost")
    assert (done, starts, is_left) == (True, 2, False)


def test_a_killed_renderer_costs_one_episode_and_no_browser() -> None:
    async def main() -> tuple[object, float | None, bool, int]:
        async with _pool() as pool, await pool.session() as session:
            await session.reset(load_task("miniwob/click-button-sequence"), 1)
            for process in psutil.Process((await pool.browser()).pid).children(recursive=True):
                if "--type=renderer" in " ".join(process.cmdline()):
                    process.kill()
            await asyncio.sleep(0.2)  # until the browser has noticed
            lost = await session.step(MISS)
            done = (await _one_episode(session)).is_done
            num_launches = pool.statistics().num_browser_launches
            return lost.end_reason, lost.reward, done, num_launches

    assert asyncio.run(main()) == ("page_crashed", 0.0, True, 1)


def test_a_browser_that_hangs_is_killed_and_replaced() -> None:
    async def main() -> tuple[str, bool, int]:
        async with _pool() as pool, await pool.session() as session:
            await session.reset(load_task("miniwob/click-button-sequence"), 1)
            pid = (await pool.browser()).pid
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(BrowserFault) as caught:
                await session.step(MISS)
            done = (await _one_episode(session)).is_done
            assert _gone({pid})
            return caught.value.kind, done, pool.statistics().num_browser_launches

    assert asyncio.run(main()) == ("timeout", True, 2)


def test_restarts_have_a_budget() -> None:
    async def main() -> None:
        async with _pool(max_restarts=2) as pool, await pool.session() as session:
            for _ in range(4):
                await session.reset(TASK, 1)
                (await pool.browser()).kill()

    with pytest.raises(RunFailedError, match="browser restarts must be <= 2 within 300 s"):
        asyncio.run(main())


def test_a_slot_is_given_to_the_next_one_who_waits() -> None:
    async def main() -> tuple[bool, int]:
        async with _pool(num_slots=1) as pool:
            first = await pool.session()
            async with asyncio.TaskGroup() as group:
                second = group.create_task(pool.session())
                await asyncio.sleep(0)
                waited = not second.done()
                await first.aclose()
                await first.aclose()
            return waited, second.result().number

    assert asyncio.run(main()) == (True, 0)


def test_a_cancelled_episode_leaves_no_context() -> None:
    # An episode that is cancelled while its page opens must not leave the context open.
    async def main() -> list[int]:
        async with _pool() as pool, await pool.session() as session:
            await session.reset(CLEAN, 1)
            browser = await pool.browser()
            counts: list[int] = []
            for turns in (1, 3, 10, 30):
                async with asyncio.TaskGroup() as group:
                    episode = group.create_task(session.reset(CLEAN, 1))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    episode.cancel()
                await session.reset(CLEAN, 1)
                counts.append(len(browser.browser.contexts))
            return counts

    counts = asyncio.run(main())
    assert max(counts) <= 2  # the episode's own, and one that is just being closed


def test_an_error_inside_leaves_as_it_is() -> None:
    async def main() -> None:
        async with _pool() as pool, await pool.session() as session:
            await session.reset(TASK, 1)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(main())
    assert _gone(_descendants())


_WORKER = """
import asyncio
import signal
from webrl.browser import BrowserConfig, BrowserPool
from webrl.tasks import load_task

async def main():
    async with BrowserPool(BrowserConfig(num_slots=1)) as pool:
        session = await pool.session()
        await session.reset(load_task("miniwob/click-test-2"), 1)
        print((await pool.browser()).driver.folder, flush=True)
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(0, ended.set)  # a dead test must not leave a worker
        await ended.wait()

# Tests that run as a shell's background job inherit an ignored SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_dies_leaves_no_process_and_the_next_one_sweeps(
    number: signal.Signals,
) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", _WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    folder = Path(worker.stdout.readline().strip())
    pids = {p.pid for p in psutil.Process(worker.pid).children(recursive=True)}
    assert len(pids) >= 4
    worker.send_signal(number)
    worker.wait(30)
    worker.stdin.close()
    worker.stdout.close()
    assert _gone(pids)
    sweep_leftovers()
    assert not folder.exists()


def test_the_sweep_spares_folders_in_use() -> None:
    folder = make_private_folder()
    try:
        assert folder not in sweep_leftovers()
        assert folder.exists()
        assert owned_processes(folder) == []
    finally:
        folder.rmdir()


def test_pages_never_reach_private_addresses_unless_the_task_says_so() -> None:
    hits: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hits.append((await reader.readline()).decode())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async def main() -> list[int]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        script = (
            "Promise.allSettled(["
            f"fetch('http://127.0.0.1:{port}/a', {{mode: 'no-cors'}}),"
            f"fetch('http://localhost:{port}/b', {{mode: 'no-cors'}}),"
            f"new Promise(r => {{ const i = new Image(); i.onload = i.onerror = r;"
            f" i.src = 'http://[::ffff:127.0.0.1]:{port}/c'; }}),"
            f"new Promise(r => {{ const w = new WebSocket('ws://127.0.0.1:{port}/d');"
            " w.onclose = w.onopen = r; })]).then(() => 1)"
        )
        counts: list[int] = []
        async with server, _pool() as pool, await pool.session() as session:
            for allow in (False, True):
                task = Task(
                    suite="web",
                    name="private",
                    url="/miniwob/click-test.html",
                    goal="g",
                    answer="x",
                    allow_private=allow,
                )
                await session.reset(task, 0)
                await session.evaluate(script)
                counts.append(len(hits))
        return counts

    refused, allowed = asyncio.run(main())
    assert refused == 0
    assert allowed > 0
