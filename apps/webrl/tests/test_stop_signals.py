"""The first signal asks, the second ends; what one sender sends twice is one wish."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, os, signal, sys, time
from webrl.stop_signals import StopSignals

async def work():
    print("working", flush=True)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        print("cancelled", flush=True)
        await asyncio.sleep(5 if "slow" in sys.argv else 0)
        raise

async def ask_and_end(stop):
    print("working", flush=True)
    await stop.wait()
    return "ended by itself"

def at_once():
    os.write(1, b"at once\\n")

with StopSignals(at_once) as signals:
    try:
        if "asked" in sys.argv:
            async def main():
                stop = asyncio.Event()
                def ask():
                    stop.set()
                    return True
                return await signals.run(ask_and_end(stop), ask)
            print(asyncio.run(main()))
        elif "plain" in sys.argv:
            print("working", flush=True)
            time.sleep(60)
        else:
            asyncio.run(signals.run(work()))
    except (KeyboardInterrupt, asyncio.CancelledError) as error:
        print(type(error).__name__)
sys.exit(signals.exit_code)
"""


class Program:
    """A process that works until it is told to end."""

    def __init__(self, *words: str, before: str = "") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", before + PROGRAM, *words],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._expect("working")

    def _expect(self, word: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == word

    def send(self, number: int, expected: str | None = None) -> None:
        self._process.send_signal(number)
        if expected is not None:
            self._expect(expected)

    def end(self) -> tuple[int, list[str]]:
        text, _ = self._process.communicate(timeout=30)
        return self._process.returncode, text.splitlines()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_cancels_what_can_not_end_by_itself(number: int, code: int) -> None:
    program = Program()
    program.send(number)
    assert program.end() == (code, ["cancelled", "CancelledError"])


def test_a_signal_asks_what_can_end_by_itself() -> None:
    program = Program("asked")
    program.send(signal.SIGTERM)
    assert program.end() == (143, ["ended by itself"])


def test_a_signal_outside_of_the_event_loop_interrupts() -> None:
    program = Program("plain")
    program.send(signal.SIGTERM)
    assert program.end() == (143, ["KeyboardInterrupt"])


def test_a_second_signal_does_not_wait_for_the_clean_up() -> None:
    program = Program("slow")
    program.send(signal.SIGINT, "cancelled")
    subprocess.run(["sleep", "0.6"], check=True)
    program.send(signal.SIGINT)
    assert program.end() == (130, ["at once"])


def test_a_signal_to_a_process_and_to_its_group_is_one_wish() -> None:
    program = Program("asked")
    for _ in range(3):
        program.send(signal.SIGTERM)
    assert program.end() == (143, ["ended by itself"])


def test_a_hang_up_stays_ignored_where_it_was() -> None:
    program = Program(
        "asked", before="import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    )
    program.send(signal.SIGHUP)
    program.send(signal.SIGINT)
    assert program.end() == (130, ["ended by itself"])
