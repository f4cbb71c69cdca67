"""Kills of real trainings at random: when, which process, by which signal; and what the trainings then end with.

A kill is one attempt of a training. It is drawn from a seed, so that it can be repeated. Then no process of the
training may be alive, the next attempt goes on, and the training ends bit for bit as one that nobody killed.
"""

import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from chain_results import assert_same
from chain_runs import Bench
from living import until, words

LONGEST_SECONDS = 400.0  # of an attempt: on a busy machine importing torch takes most of it
ALIVE_SECONDS = 120.0  # after a kill, all processes have ended
MOST_ATTEMPTS = 4  # to end a training that is not killed any more
VICTIMS = ("one rank", "launcher", "job", "all")


@dataclass(frozen=True)
class Kill:
    """`at`: a function of the product, `call`: which call of it, or which step. `after`: seconds, of a random instant.

    `rank`: the one that comes there; None: any.
    """

    phase: str
    victim: str
    signal: signal.Signals
    at: str = ""
    call: int = 1
    rank: int | None = None
    after: float = 0.0


@dataclass
class Attempt:
    """One start of a training in its folder."""

    folder: Path
    job: subprocess.Popen[Any]

    def moment(self, kill: Kill) -> bool:
        """Wait for the kill's moment; False where the attempt has ended before."""

    def released(self) -> None:
        """Let what has stopped itself go on."""

    def end(self) -> tuple[int, str]:
        """Wait for the job's end: its status, negative where a signal ended it, and what it said."""

    def ended_within(self, seconds: float) -> bool:
        """Whether the job has ended after so many seconds."""
        with suppress(subprocess.TimeoutExpired):
            self.job.wait(seconds)
        return self.job.poll() is not None

    def victims(self, victim: str) -> list[psutil.Process]:
        """The victims as far as they have been started; else what there is of the training."""
        with suppress(psutil.NoSuchProcess):
            whole = psutil.Process(self.job.pid)
            launchers = [p for p in whole.children() if str(self.folder) in " ".join(words(p))]
            ranks = [p for launcher in launchers for p in launcher.children()] or launchers
            one, every = random.sample(ranks, min(1, len(ranks))), dict.fromkeys([*ranks, *launchers, whole])
            return {"one rank": one, "launcher": launchers, "job": [whole], "all": [*every]}[victim] or [whole]
        return []

    def kill(self, kill: Kill) -> bool:
        """Send the signal to the victims when its moment comes; whether it came."""
        if not self.moment(kill):
            return False
        for process in self.victims(kill.victim):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(kill.signal)
        self.released()
        return True


@dataclass
class Campaign:
    """Chains of kills over the cases, in turn, until there were enough of them."""

    bench: Bench
    seed: int
    cases: Sequence[str]
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    by: Counter[str] = field(default_factory=Counter)
    missed: int = 0  # attempts that ended before the kill's moment came
    uncut: dict[str, Any] = field(default_factory=dict)

    def drawn(self, draw: random.Random, case: str, count: int) -> list[Kill]:
        """So many kills of a chain."""

    def made(self, case: str, name: str) -> Any:
        """A training that has not begun."""

    def begin(self, training: Any, number: int, kill: Kill | None) -> Attempt:
        """Start the training's attempt of this number, which may be killed."""

    def result(self, case: str, training: Any) -> Any:
        """All that a training has ended with."""

    def ends(self, kill: Kill) -> Container[int]:
        """The statuses of a job after this kill: it is interrupted, or ended by the signal itself."""
        return (0, 75, -kill.signal)

    def run(self, kills: int, each: int = 4) -> None:
        """Kill so often, `each` times in a chain at most. Raises AssertionError that names the chain and its seed."""
        number = 0
        while (left := kills - self.counts.total()) > 0:
            case = self.cases[number % len(self.cases)]
            drawn = self.drawn(random.Random(f"{self.seed}-{number}"), case, min(each, left))
            try:
                if case not in self.uncut:
                    self.uncut[case] = self._trained(case, f"uncut-{self.cases.index(case)}", [])
                assert_same(self._trained(case, f"chain-{number}", drawn), self.uncut[case])
            except BaseException as error:
                told = "\n".join(map(str, drawn))
                error.add_note(f"seed {self.seed}, chain {number}, {case}:\n{told}\n{self.table()}")
                raise
            number += 1
            print(f"{self.counts.total()} of {kills} kills", file=sys.stderr, flush=True)

    def _trained(self, case: str, name: str, kills: Sequence[Kill]) -> Any:
        """What a training ends with that is killed so often."""
        training = self.made(case, name)
        for number, kill in enumerate([*kills, *[None] * MOST_ATTEMPTS], start=1):
            attempt = self.begin(training, number, kill)
            try:
                came = kill is not None and attempt.kill(kill)
                status, said = attempt.end()
                until(lambda: not self.bench.processes(), "all processes have ended", ALIVE_SECONDS)
            finally:
                self.bench.kill()
            if kill and came:
                self.counts[case, kill.phase] += 1
                self.by[f"{kill.victim}, {kill.signal.name}"] += 1
            else:
                self.missed += kill is not None
            assert status in (self.ends(kill) if kill and came else (0, 75)), f"{kill}: {status}\n{said}"
            if status == 0:
                break
        assert status == 0, said
        assert list(attempt.folder.rglob(".partial-*")) == []
        return self.result(case, training)

    def table(self) -> str:
        """The kills so far, by case and phase, and by victim and signal."""
        told = [*(f"{case}, {phase}: {count}" for (case, phase), count in sorted(self.counts.items()))]
        told += [f"{name}: {count}" for name, count in sorted(self.by.items())]
        return "\n".join([*told, f"{self.counts.total()} kills; {self.missed} attempts ended before their moment"])
