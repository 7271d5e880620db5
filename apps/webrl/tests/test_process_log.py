"""A log that stays readable in trouble: equal messages are one line and a count."""

from __future__ import annotations

import asyncio
import io
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from awrl_rollout import (
    GenerateRequest,
    InterruptibleGenerator,
    RetryPolicy,
    ServerUnavailableError,
    SGLangClient,
    StickyRouter,
)
from webrl.process_log import INTERVAL_S, MOST_KINDS, JoiningHandler, log_to_file


class Log:
    """A logger of its own with the joining handler, at a time that stands still."""

    def __init__(self, name: str = "joined") -> None:
        self.now_s = 0.0
        self._out = io.StringIO()
        self.handler = JoiningHandler(logging.StreamHandler(self._out), clock=lambda: self.now_s)
        self.logger = logging.getLogger(name)
        self._before = self.logger.handlers[:], self.logger.level, self.logger.propagate
        self.logger.handlers[:] = [self.handler]
        self.logger.setLevel(logging.INFO)
        self.logger.propagate = False

    def undo(self) -> None:
        """Leave the logger as it was."""
        self.logger.handlers[:], self.logger.level, self.logger.propagate = self._before

    @property
    def lines(self) -> list[str]:
        return self._out.getvalue().splitlines()


@pytest.fixture
def log() -> Iterator[Log]:
    log = Log()
    yield log
    log.undo()


def test_the_first_of_equal_messages_is_written_at_once_and_the_others_are_counted(
    log: Log,
) -> None:
    for number in range(1000):
        log.logger.warning("server %s is gone: %s", number % 2, "refused")
    assert log.lines == ["server 0 is gone: refused"]
    log.now_s = INTERVAL_S + 1
    log.logger.warning("another")
    assert log.lines[1:] == [
        "999 more like it in 31 s: server 1 is gone: refused (x 500); "
        "server 0 is gone: refused (x 499)",
        "another",
    ]
    log.logger.warning("server %s is gone: %s", 0, "refused")
    assert log.lines[-1] == "server 0 is gone: refused"


def test_a_count_that_was_not_due_is_written_at_the_end(log: Log) -> None:
    for number in range(9):
        log.logger.info("attempt %d failed", number)
    log.handler.close()
    assert log.lines[1] == (
        "8 more like it in 0 s: attempt 1 failed (x 1); attempt 2 failed (x 1); "
        "attempt 3 failed (x 1); 5 with other values"
    )


def test_levels_and_texts_of_their_own_are_not_joined(log: Log) -> None:
    log.logger.info("[0:01] step 1")
    log.logger.info("[0:02] step 2")
    log.logger.warning("[0:02] step 2")
    assert len(log.lines) == 3


def test_a_traceback_is_written_once_and_a_count_has_one_line(log: Log) -> None:
    for _ in range(5):
        try:
            raise ValueError("first line\nsecond line")
        except ValueError as error:
            log.logger.exception("request %r failed: %s", "r", error)
    log.handler.close()
    text = "\n".join(log.lines)
    assert text.count("Traceback") == 1
    assert log.lines[-1] == "4 more like it in 0 s: request 'r' failed: first line (x 4)"


def test_memory_is_bounded_and_what_is_forgotten_is_counted(log: Log) -> None:
    for number in range(3 * MOST_KINDS):
        log.logger.info("kind %d", number)
        log.logger.info(f"text {number}")  # noqa: G004 - a kind of its own on purpose
        log.logger.info(f"text {number}")  # noqa: G004
    log.handler.close()
    assert sum("more like it" in line for line in log.lines) > 3 * MOST_KINDS


def test_a_server_that_is_gone_is_one_line_and_a_count() -> None:
    log = Log("awrl_rollout")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"

    async def ask(generator: InterruptibleGenerator, number: int) -> None:
        request = GenerateRequest(input_ids=[1, 2], max_new_tokens=2, episode_id=str(number))
        with pytest.raises(ServerUnavailableError):
            await generator.generate(request)

    async def main() -> None:
        router = StickyRouter([url], connect=SGLangClient)
        retry = RetryPolicy(max_retries=4, base_delay_s=0.001, max_delay_s=0.001, jitter=0.0)
        generator = InterruptibleGenerator(router, deadline_s=30.0, retry=retry)
        async with asyncio.TaskGroup() as group:
            for number in range(40):
                group.create_task(ask(generator, number))
        await router.aclose()

    asyncio.run(main())
    log.handler.close()
    log.undo()
    assert 2 <= len(log.lines) <= 6, log.lines
    assert any("more like it" in line for line in log.lines)


def test_a_log_file_is_closed_and_the_handlers_before_it_come_back(tmp_path: Path) -> None:
    root = logging.getLogger()
    before = root.handlers[:]
    with log_to_file(tmp_path / "run.log", "INFO"):
        logging.getLogger("webrl").info("a note")
        logging.getLogger("aiohttp.access").info("GET /")
    assert root.handlers == before
    text = (tmp_path / "run.log").read_text()
    assert "INFO webrl: a note" in text
    assert "GET /" not in text
