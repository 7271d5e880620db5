"""Starts a run, kills one of its processes after the other, and ends it with Ctrl-C.

What is not a process of the run, such as a judge, is switched off and on again.

Invariants:
    * the next fault is injected only once versions were trained after the one before, unless the
      injection asks not to wait;
    * whatever happens, nothing that was started here is left behind: what did not end by itself is
      killed, and reported as a problem.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from webrl.rehearse.targets import CONTROLLER, KINDS, SHARD, find_targets

RECOVERY_DEADLINE_S = 300.0
"""A run that trains nothing for this long after a fault counts as stopped."""

ORPHAN_DEADLINE_S = 30.0
"""Below a killed controller everything must end within this time."""

LOOK_S = 0.2
"""Between two looks whether a checkpoint is there."""

DOWN_S = 15.0
"""What is switched off is back after this time."""

INTERRUPT_DEADLINE_S = 60.0
"""After Ctrl-C likewise."""

TAIL_LINES = 30
"""Lines of a run's output that a problem shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Injection:
    """What to kill next, and when."""

    kind: str
    """One of `CLUSTER_KINDS`, or the name of a switch."""
    delay_s: float = 0.0
    """Seconds from the moment that it may happen to the kill."""
    num_versions: int = 1
    """Versions that must have been trained since the one before; 0 kills during its recovery."""
    kills_all: bool = False
    """Every process of the kind, instead of one drawn by chance."""


@dataclass(kw_only=True, slots=True)
class InjectedFault:
    """A fault that was injected."""

    kind: str
    """What was killed."""
    at_s: float
    """When, in seconds from the start."""
    recovered_s: float | None = None
    """Seconds to the next trained version; `None` where another fault came first."""


@dataclass(kw_only=True, slots=True)
class ChaosOutcome:
    """What was seen from outside."""

    faults: list[InjectedFault] = field(default_factory=list[InjectedFault])
    """In order."""
    num_versions: int = 0
    """Versions that were trained, those that a resume forgot included."""
    problems: list[str] = field(default_factory=list[str])
    """What must not be."""
    text: str = ""
    """All that the run printed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunCommand:
    """How a run is started."""

    start: Sequence[str]
    """Command line that starts it."""
    resume: Sequence[str]
    """Command line that goes on after the controller's death."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Added to this process's environment."""
    roots: Sequence[psutil.Process] = ()
    """Processes below which others of the run are, such as a cluster's."""
    can_resume: Callable[[], bool] = lambda: True
    """Whether there is something to go on from; the controller is not killed before."""


def train_command(arguments: Sequence[str], run_dir: Path) -> RunCommand:
    """Return how `webrl train` is started with these arguments."""
    train = (sys.executable, "-m", "webrl", "train")
    return RunCommand(start=[*train, *arguments], resume=[*train, "--resume", str(run_dir)])


class _TrainProcess:
    """The run's process of the moment."""

    def __init__(
        self, command: RunCommand, outcome: ChaosOutcome, show: Callable[[str], None]
    ) -> None:
        self._command = command
        self._outcome = outcome
        self._show = show
        self._process: Process | None = None
        self.started_s = time.monotonic()

    @property
    def process(self) -> Process:
        assert self._process is not None
        return self._process

    @property
    def roots(self) -> list[psutil.Process]:
        """The run's process, and what else its processes are below."""
        return [psutil.Process(self.process.pid), *self._command.roots]

    async def start(self, *, is_resumed: bool = False) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(self._command.resume if is_resumed else self._command.start),
            env={**os.environ, **self._command.environment},
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
        if self._outcome.faults and self._outcome.faults[-1].recovered_s is None:
            fault = self._outcome.faults[-1]
            fault.recovered_s = time.monotonic() - self.started_s - fault.at_s


async def inject_faults(
    command: RunCommand,
    injections: Iterable[Injection],
    *,
    rng: random.Random,
    show: Callable[[str], None] = lambda line: None,
    switches: Mapping[str, Callable[[float], None]] | None = None,
    start_deadline_s: float = RECOVERY_DEADLINE_S,
) -> ChaosOutcome:
    """Train, inject faults, and end the run with Ctrl-C.

    Args:
        command: Starts the run.
        injections: What to kill; asked for the next one when the one before is done.
        rng: Draws among the processes of a kind.
        show: Told what happens.
        switches: What else can fail, by name: told for how many seconds from now on.
        start_deadline_s: Limit from the start to the first trained version, in seconds, and from a fault
            to the next one.
    """
    outcome = ChaosOutcome()
    run = _TrainProcess(command, outcome, show)
    await run.start()
    try:
        await _let_work(run, 1, start_deadline_s)
        for injection in injections:
            await _let_work(run, injection.num_versions, start_deadline_s)
            await run.read(num_versions=None, limit_s=injection.delay_s)
            if injection.kind == CONTROLLER:
                await _let_save(run, command, start_deadline_s)
            if injection.kind in (switches or {}):
                await _switch(run, injection.kind, (switches or {})[injection.kind], outcome, show)
            elif await _inject(run, injection, rng, outcome, show):
                await run.start(is_resumed=True)
        await _let_work(run, 3, start_deadline_s)
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


async def _let_work(run: _TrainProcess, num_versions: int, deadline_s: float) -> None:
    """Wait for trained versions.

    Raises:
        EOFError: The run ended.
        TimeoutError: It trains nothing.
    """
    if num_versions and not await run.read(num_versions=num_versions, limit_s=deadline_s):
        raise TimeoutError(f"no version was trained within {deadline_s:g} s")


async def _let_save(run: _TrainProcess, command: RunCommand, deadline_s: float) -> None:
    """Wait until a killed run can be resumed: a checkpoint is written in the background.

    Raises:
        EOFError: The run ended.
        TimeoutError: It saves nothing.
    """
    end_s = time.monotonic() + deadline_s
    while not command.can_resume():
        if time.monotonic() > end_s:
            raise TimeoutError(f"no checkpoint was written within {deadline_s:g} s")
        await run.read(num_versions=None, limit_s=LOOK_S)


async def _switch(
    run: _TrainProcess,
    name: str,
    go_down: Callable[[float], None],
    outcome: ChaosOutcome,
    show: Callable[[str], None],
) -> None:
    """Let something be down for a while."""
    at_s = time.monotonic() - run.started_s
    outcome.faults.append(InjectedFault(kind=name, at_s=at_s))
    show(f"{at_s:6.1f} s  {name} is down for {DOWN_S:g} s")
    go_down(DOWN_S)
    await run.read(num_versions=None, limit_s=DOWN_S)


async def _inject(
    run: _TrainProcess,
    injection: Injection,
    rng: random.Random,
    outcome: ChaosOutcome,
    show: Callable[[str], None],
) -> bool:
    """Kill; return whether the controller is gone and the run has to be resumed."""
    roots = run.roots
    targets = find_targets(roots, injection.kind)
    if not targets:
        show(f"no {injection.kind} lives at this moment")
        return False
    if not injection.kills_all:
        targets = [rng.choice(targets)]
    # Detached, on a cluster that lasts: a resume ends the shards that the killed process left.
    below = _whole_run(roots, but=SHARD) if injection.kind == CONTROLLER else []
    at_s = time.monotonic() - run.started_s
    outcome.faults.append(InjectedFault(kind=injection.kind, at_s=at_s))
    show(
        f"{at_s:6.1f} s  kill {injection.kind}: {', '.join(str(target.pid) for target in targets)}"
    )
    for target in targets:
        with contextlib.suppress(psutil.NoSuchProcess):
            target.kill()
    if injection.kind != CONTROLLER:
        return False
    await run.process.wait()
    await _expect_gone(
        below,
        ORPHAN_DEADLINE_S,
        f"{ORPHAN_DEADLINE_S:g} s after the controller was killed",
        outcome,
    )
    return True


async def _interrupt(run: _TrainProcess, outcome: ChaosOutcome) -> None:
    below = _whole_run(run.roots)
    run.process.send_signal(signal.SIGINT)
    with contextlib.suppress(EOFError):
        if not await run.read(num_versions=None, limit_s=INTERRUPT_DEADLINE_S):
            outcome.problems.append(f"Ctrl-C did not end it within {INTERRUPT_DEADLINE_S:g} s")
            return
    code = await run.process.wait()
    if code != 130:
        outcome.problems.append(f"Ctrl-C must end it with code 130, got {code}")
    await _expect_gone(below, ORPHAN_DEADLINE_S, "after Ctrl-C", outcome)


def _whole_run(roots: Sequence[psutil.Process], but: str = "") -> list[psutil.Process]:
    """Return everything that must end with the run; a cluster that it joined stays."""
    processes = roots[0].children(recursive=True)
    for kind in KINDS:
        if kind not in (CONTROLLER, but):
            processes += find_targets(roots[1:], kind)
    return processes


async def _expect_gone(
    processes: Sequence[psutil.Process], deadline_s: float, when: str, outcome: ChaosOutcome
) -> None:
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, timeout=deadline_s)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            words = " ".join(process.cmdline())[:160]
            outcome.problems.append(f"process {process.pid} lives on {when}: {words}")
            process.kill()


async def _end(run: _TrainProcess) -> None:
    """Kill what is left of the run's process tree."""
    if run.process.returncode is not None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        controller = psutil.Process(run.process.pid)
        for process in (*controller.children(recursive=True), controller):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    await run.process.wait()
