"""Watches a run from outside: a client that asks for one token all the time, server loads, the GPU.

    python benchmarks/one_gpu/watch.py OUT.jsonl [--rollout URL] [--test URL] [--no-probe]

Writes a line per observation until it is interrupted. The time between two answers of the client is
what an update costs a server's clients, from the pause to the first token after it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import signal
import time
from pathlib import Path
from typing import IO

import aiohttp
from awrl_rollout import GenerateRequest, RolloutError, SGLangClient

PROBE_S = 0.05
"""Between two requests of the client."""

LOAD_S = 0.25
"""Between two looks at the servers and the GPU."""

TEXT = [20, 21, 22, 23]
"""Any prompt without an image: ids that every tokenizer has."""


async def probe(file: IO[str], url: str) -> None:
    """Ask the server for one token, again and again."""
    request = GenerateRequest(
        input_ids=TEXT, images=[], max_new_tokens=1, temperature=1.0, episode_id="probe"
    )
    async with SGLangClient(url) as client:
        while True:
            start = time.monotonic()
            try:
                answer = await client.generate(request)
            except RolloutError:
                answer = None
            if answer is not None and answer.stop_reason != "abort":
                now = time.monotonic()
                note(file, "token", at=now, latency_s=now - start, version=answer.versions[-1])
            await asyncio.sleep(PROBE_S)


async def loads(file: IO[str], name: str, url: str) -> None:
    """Note how many requests a server works on."""
    async with aiohttp.ClientSession() as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError):
                async with asyncio.timeout(5), session.get(f"{url}/v1/loads") as reply:
                    load = (await reply.json())["loads"][0]
                    note(file, name, at=time.monotonic(), running=load["num_running_reqs"])
            await asyncio.sleep(LOAD_S)


async def gpu(file: IO[str], query: str, kind: str) -> None:
    """Note what `nvidia-smi` says, a line at a time; nothing where there is none."""
    if shutil.which("nvidia-smi") is None:
        return
    process = await asyncio.create_subprocess_exec(
        "nvidia-smi", *query.split(), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async for line in process.stdout:
            note(file, kind, at=time.monotonic(), line=line.decode().strip())
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def note(file: IO[str], kind: str, **fields: object) -> None:
    """Write one observation."""
    file.write(json.dumps({"kind": kind, **fields}) + "\n")
    file.flush()


async def watch(file: IO[str], rollout: str, test: str, *, is_probing: bool) -> None:
    """Run all observers until SIGINT or SIGTERM."""
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, over.set)
    async with asyncio.TaskGroup() as group:
        device = "--query-gpu=utilization.gpu,memory.used --format=csv,noheader,nounits -lms 250"
        tasks = [group.create_task(probe(file, rollout))] if is_probing else []
        tasks += [
            group.create_task(loads(file, "rollout", rollout)),
            group.create_task(loads(file, "test", test)),
            group.create_task(gpu(file, device, "gpu")),
            group.create_task(gpu(file, "pmon -s um -d 1", "process")),
        ]
        await over.wait()
        for task in tasks:
            task.cancel()


def main() -> None:
    """Watch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rollout", default="http://127.0.0.1:30000")
    parser.add_argument("--test", default="http://127.0.0.1:30001")
    parser.add_argument(
        "--no-probe", action="store_true", help="no client: SGLang's pause waits for its requests"
    )
    options = parser.parse_args()
    with options.out.open("w", encoding="utf-8") as file:
        asyncio.run(watch(file, options.rollout, options.test, is_probing=not options.no_probe))


if __name__ == "__main__":
    main()
