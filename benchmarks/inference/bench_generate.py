"""Requests per second of an inference server at several concurrencies.

Every request has one screenshot and the policy's own prompt. `--group-size 1` gives each request a
screenshot of its own (no sharing possible); `--group-size 8` gives eight requests in a row the same
one, as sibling episodes of a group have it.

    python benchmarks/inference/bench_generate.py --model-path DIR [--url http://host:port]

Without `--url` an embedded server is started on a free port and ended afterwards. The result is one
JSON object on standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from awrl_rollout import GenerateRequest, SGLangClient
from PIL import Image, ImageDraw
from webrl.policy import PolicyProcessor

VIEWPORT = (160, 224)
"""Width and height of the laptop policy's page, pixels."""


def screenshot(seed: int) -> str:
    """Return a page with a few boxes and words, as base64 PNG."""
    rng = random.Random(seed)
    page = Image.new("RGB", VIEWPORT, "white")
    draw = ImageDraw.Draw(page)
    for _ in range(4):
        x, y = rng.randrange(120), rng.randrange(180)
        colour = tuple(rng.randrange(256) for _ in range(3))
        draw.rectangle((x, y, x + rng.randrange(10, 40), y + rng.randrange(10, 40)), fill=colour)
        draw.text((x, y), f"item {rng.randrange(1000)}", fill="black")
    buffer = io.BytesIO()
    page.save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def requests(
    processor: PolicyProcessor, *, num: int, group_size: int, num_tokens: int, first_seed: int
) -> list[GenerateRequest]:
    """Return `num` requests; each `group_size` in a row share their screenshot."""
    prompt = processor.build_prompt("click the button", [], 1)
    masked = (*processor.masked_token_ids, processor.eos_token_id)
    images = [screenshot(first_seed + group) for group in range(-(-num // group_size))]
    return [
        GenerateRequest(
            input_ids=prompt,
            images=[images[index // group_size]],
            max_new_tokens=num_tokens,
            masked_token_ids=masked,
            episode_id=f"bench-{first_seed}-{index}",
        )
        for index in range(num)
    ]


async def drive(url: str, work: Sequence[GenerateRequest], concurrency: int) -> dict[str, float]:
    """Send `work` in order from `concurrency` loops; return rate and latencies."""
    pending = iter(work)
    latencies: list[float] = []

    async def loop_of_one(client: SGLangClient) -> None:
        for request in pending:
            start = time.perf_counter()
            await client.generate(request)
            latencies.append(time.perf_counter() - start)

    async with SGLangClient(url) as client:
        start = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(loop_of_one(client))
        wall_s = time.perf_counter() - start
    latencies.sort()
    return {
        "requests_per_s": round(len(work) / wall_s, 1),
        "p50_ms": round(latencies[len(latencies) // 2] * 1e3, 2),
        "p99_ms": round(latencies[int(len(latencies) * 0.99)] * 1e3, 2),
    }


@contextmanager
def embedded_server(model_path: str) -> Generator[tuple[str, int, float]]:
    """Run an embedded server; yield its address, its process id and its start time in seconds."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = time.perf_counter()
    command = [sys.executable, "-m", "webrl.embedded", "--model-path", model_path]
    command += ["--port", str(port), "--end-with-stdin", "--log-level", "warning"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    url = f"http://127.0.0.1:{port}"
    try:
        asyncio.run(_ready(url))
        yield url, process.pid, time.perf_counter() - start
    finally:
        process.terminate()
        process.wait(10)


async def _ready(url: str) -> None:
    async with SGLangClient(url) as client:
        await client.wait_until_healthy(deadline_s=180)


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--url")
    parser.add_argument("--num", type=int, default=512, help="requests per measurement")
    parser.add_argument("--tokens", type=int, default=4, help="tokens per answer")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 16, 32])
    parser.add_argument("--group-size", type=int, nargs="+", default=[1, 8])
    options = parser.parse_args()
    processor = PolicyProcessor.from_pretrained(options.model_path)
    if options.url:
        print(json.dumps(_measure(options, processor, options.url, None), indent=1))
        return
    with embedded_server(options.model_path) as (url, pid, start_s):
        result = _measure(options, processor, url, pid)
    result["start_s"] = round(start_s, 2)
    print(json.dumps(result, indent=1))


def _measure(
    options: argparse.Namespace, processor: PolicyProcessor, url: str, pid: int | None
) -> dict[str, object]:
    rows: list[dict[str, object]] = []
    seed = 1
    warm = requests(processor, num=32, group_size=1, num_tokens=options.tokens, first_seed=0)
    asyncio.run(drive(url, warm, 8))
    for group_size in options.group_size:
        for concurrency in options.concurrency:
            seed += 100_000
            work = requests(
                processor,
                num=options.num,
                group_size=group_size,
                num_tokens=options.tokens,
                first_seed=seed,
            )
            before = cpu_s(pid) if pid else 0.0
            measured: dict[str, object] = dict(asyncio.run(drive(url, work, concurrency)))
            if pid:
                measured["server_cpu_ms_per_request"] = round(
                    (cpu_s(pid) - before) / options.num * 1e3, 2
                )
            rows.append({"group_size": group_size, "concurrency": concurrency, **measured})
    return {"num": options.num, "tokens": options.tokens, "rows": rows}


if __name__ == "__main__":
    main()
