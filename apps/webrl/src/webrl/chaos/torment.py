"""Starts a run, kills one of its processes after the other, and ends it with Ctrl-C.

Invariants:
    * the next blow falls only once versions were trained after the one before, or the blow asks not
      to wait;
    * whatever happens, nothing that was started here is left behind: what did not end by itself is
      killed, and reported as a problem.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from webrl.chaos.victims import CONTROLLER, find_victims, is_agent

__all__ = ["Blow", "Outcome", "Strike", "torment"]

RECOVERY_DEADLINE_S = 300.0
"""A run that trains nothing for this long after a blow counts as stopped."""

ORPHAN_DEADLINE_S = 30.0
"""Below a killed controller everything must end within this time."""

INTERRUPT_DEADLINE_S = 60.0
"""After Ctrl-C likewise."""

TAIL_LINES = 30
"""Lines of a run's output that a problem shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Blow:
    """What to kill next, and when."""

    kind: str
    """One of `KINDS`."""
    delay_s: float = 0.0
    """Seconds from the moment that it may fall to its fall."""
    num_versions: int = 1
    """Versions that must have been trained since the blow before; 0 falls into its recovery."""
    kills_all: bool = False
    """Every process of the kind, instead of one drawn by chance."""


@dataclass(kw_only=True, slots=True)
class Strike:
    """A blow that fell."""

    kind: str
    """What was killed."""
    at_s: float
    """When, in seconds from the start."""
    recovered_s: float | None = None
    """Seconds to the next trained version; None where another blow fell first."""


@dataclass(kw_only=True, slots=True)
class Outcome:
    """What was seen from outside."""

    strikes: list[Strike] = field(default_factory=list[Strike])
    """In order."""
    num_versions: int = 0
    """Versions that were trained, those that a resume forgot included."""
    problems: list[str] = field(default_factory=list[str])
    """What must not be."""
    text: str = ""
    """All that the run printed."""


class _Run:
    """The run's process of the moment."""

    def __init__(self, outcome: Outcome, show: Callable[[str], None]) -> None:
        self._outcome = outcome
        self._show = show
        self._process: Process | None = None
        self.started_s = time.monotonic()

    @property
    def process(self) -> Process:
        assert self._process is not None
        return self._process

    async def start(self, arguments: Sequence[str]) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "webrl", "train", *arguments),
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
        )

    async def read(self, *, num_versions: int | None, limit_s: float) -> bool:
        """Read on until versions were trained, or time is over; returns whether they were.

        Raises:
            EOFError: The run ended.
        """
        assert self.process.stdout is not None
        seen = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while num_versions is None or seen < num_versions:
                    line = (await self.process.stdout.readline()).decode()
                    if not line:
                        raise EOFError
                    self._outcome.text += line
                    if " version " in line and " success " in line:
                        seen += 1
                        self._outcome.num_versions += 1
                        self._note_recovery()
                    else:
                        self._show(f"    {line.rstrip()}")
        return num_versions is not None and seen >= num_versions

    def _note_recovery(self) -> None:
        if self._outcome.strikes and self._outcome.strikes[-1].recovered_s is None:
            strike = self._outcome.strikes[-1]
            strike.recovered_s = time.monotonic() - self.started_s - strike.at_s


async def torment(
    arguments: Sequence[str],
    run_dir: Path,
    blows: Iterable[Blow],
    *,
    rng: random.Random,
    show: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Train, strike, and end the run with Ctrl-C.

    Args:
        arguments: Of `webrl train`, for the start.
        run_dir: The run's folder, for going on after the controller's death.
        blows: What to kill; asked for the next one once the one before fell.
        rng: Draws among the processes of a kind.
        show: Told what happens.
    """
    outcome = Outcome()
    run = _Run(outcome, show)
    await run.start(arguments)
    try:
        for blow in blows:
            await _let_work(run, blow.num_versions)
            await run.read(num_versions=None, limit_s=blow.delay_s)
            if await _strike(run, blow, rng, outcome, show):
                await run.start(["--resume", str(run_dir)])
        await _let_work(run, 3)
        await _interrupt(run, outcome)
    except (EOFError, psutil.NoSuchProcess):
        outcome.text += (await run.process.communicate())[0].decode()
        tail = "\n".join(outcome.text.splitlines()[-TAIL_LINES:])
        outcome.problems.append(f"the run ended with {run.process.returncode}:\n{tail}")
    except TimeoutError as error:
        outcome.problems.append(str(error))
    finally:
        await _end(run)
    return outcome


async def _let_work(run: _Run, num_versions: int) -> None:
    """Wait for trained versions.

    Raises:
        EOFError: The run ended.
        TimeoutError: It trains nothing.
    """
    if num_versions and not await run.read(num_versions=num_versions, limit_s=RECOVERY_DEADLINE_S):
        raise TimeoutError(f"no version was trained within {RECOVERY_DEADLINE_S:g} s")


async def _strike(
    run: _Run, blow: Blow, rng: random.Random, outcome: Outcome, show: Callable[[str], None]
) -> bool:
    """Kill; return whether the controller is gone and the run has to be resumed."""
    controller = psutil.Process(run.process.pid)
    victims = find_victims(controller, blow.kind)
    if not victims:
        show(f"no {blow.kind} lives at this moment")
        return False
    if not blow.kills_all:
        victims = [rng.choice(victims)]
    below = controller.children(recursive=True) if blow.kind == CONTROLLER else []
    at_s = time.monotonic() - run.started_s
    outcome.strikes.append(Strike(kind=blow.kind, at_s=at_s))
    show(f"{at_s:6.1f} s  kill {blow.kind}: {', '.join(str(victim.pid) for victim in victims)}")
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
    if blow.kind != CONTROLLER:
        return False
    await run.process.wait()
    await _expect_gone(
        [process for process in below if not is_agent(process)],
        ORPHAN_DEADLINE_S,
        f"{ORPHAN_DEADLINE_S:g} s after the controller was killed",
        outcome,
    )
    return True


async def _interrupt(run: _Run, outcome: Outcome) -> None:
    below = psutil.Process(run.process.pid).children(recursive=True)
    run.process.send_signal(signal.SIGINT)
    with contextlib.suppress(EOFError):
        if not await run.read(num_versions=None, limit_s=INTERRUPT_DEADLINE_S):
            outcome.problems.append(f"Ctrl-C did not end it within {INTERRUPT_DEADLINE_S:g} s")
            return
    code = await run.process.wait()
    if code != 130:
        outcome.problems.append(f"Ctrl-C must end it with code 130, got {code}")
    await _expect_gone(below, ORPHAN_DEADLINE_S, "after Ctrl-C", outcome)


async def _expect_gone(
    processes: Sequence[psutil.Process], deadline_s: float, when: str, outcome: Outcome
) -> None:
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, timeout=deadline_s)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            words = " ".join(process.cmdline())[:160]
            outcome.problems.append(f"process {process.pid} lives on {when}: {words}")
            process.kill()


async def _end(run: _Run) -> None:
    """Kill what is left of the run's process tree."""
    if run.process.returncode is not None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        controller = psutil.Process(run.process.pid)
        for process in (*controller.children(recursive=True), controller):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    await run.process.wait()
