"""Kills of real segment jobs at random: when, which process, by which signal; and what the runs then end with.

A kill is one attempt of a chain. It is drawn from a seed, so that it can be repeated. At a phase, a process stops
itself (`hooked`); then its victim is killed, and it goes on if it can. At a random instant nothing has stopped. Then no
process of the run may be alive, the next attempt goes on, and the run ends bit for bit as an uncut one.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil

from chain_results import assert_same, result
from chain_runs import DROPOUT, Bench, Chain, finish
from hooked import Hook, interpreter
from living import until, words
from own_tasks import spec
from relay.run_folder.run_chain import read_measured
from relay.spec.tasks import TaskSpec

STEPS = 14
EVALUATE_EVERY = 5
LONGEST_SECONDS = 400.0  # of an attempt: on a busy machine importing torch takes most of it
ALIVE_SECONDS = 120.0  # after a kill, all processes of the run have ended
MOST_ATTEMPTS = 4  # to end a run that is not killed any more
SMALL = {"width": 16, "depth": 2, "heads": 4}
GPT = spec("gpt-tiny", **SMALL, global_batch_size=8)
MIXTURE = spec("gpt-moe-tiny", **SMALL, global_batch_size=8)
TWO = {"launcher": "torchrun", "devices_per_node": 2}
# Every strategy's ranks save at each step, in the background, so that a kill at any step finds a save under way.
EACH_STEP = "from relay.chain import peers\npeers.AGREE_SECONDS = 0.0"


@dataclass(frozen=True)
class Case:
    """What is trained, and how its processes are started."""

    base: str
    spec: TaskSpec
    values: dict[str, Any]

    @property
    def ranks(self) -> int:
        return int(self.values.get("devices_per_node", 1)) * int(self.values.get("processes_per_device", 1))


CASES = {
    "cpu, dropout": Case("cpu", DROPOUT, {}),
    "ddp, dropout": Case("ddp", DROPOUT, TWO),
    "ddp, spawn": Case("ddp", DROPOUT, TWO | {"launcher": "spawn"}),
    "fsdp": Case("fsdp", GPT, TWO),
    "pipeline": Case("pipeline", GPT, TWO),
    "tensor_parallel": Case("tensor_parallel", GPT, TWO),
    "expert_parallel": Case("expert_parallel", MIXTURE, TWO),
    "mps": Case("mps", DROPOUT, {"launcher": "torchrun", "devices_per_node": 1, "processes_per_device": 2}),
}
# Where a process stops itself: functions of the product, by phase. The first of "import" is whatever imports torch.
PHASES: dict[str, Sequence[str]] = {
    "import": ("torch.nn",),
    "join": ("relay.process.ranks:Ranks.join",),
    "load": ("relay.training.checkpoint:RunSaver.resume",),
    "step": ("relay.training.recorder:Recorder.loss",),
    "copy": ("relay.chain.saving:generators",),
    "write": ("relay.chain.saving:Saver._write", "relay.chain.sealed:seal"),
    "rename": ("relay.chain.sealed:sync", "relay.chain.sealed:superseded"),
    "evaluation": ("relay.training.evaluation:Evaluation.measure",),
    "end": ("relay.training.recorder:Recorder.end",),
}
OF_RANK_0 = ("seal", "sync", "superseded")
REPEATED = ("step", "copy", "write", "rename")  # phases that a training comes through at each step
ANY_TIME = "any time"
VICTIMS = ("one rank", "launcher", "job", "all")
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
# What a job may end with that was killed: interrupted (75), or by the signal itself.
ENDS = {75, *(-number for number in SIGNALS)}


@dataclass(frozen=True)
class Kill:
    """One kill. `call`: at which call of the phase's function. `after`: of a random instant, the seconds."""

    phase: str
    at: str
    call: int
    rank: int | None
    victim: str
    signal: signal.Signals
    after: float

    @classmethod
    def drawn(cls, draw: random.Random, phase: str, ranks: int) -> Kill:
        at = draw.choice(PHASES.get(phase, ("",)))
        rank = 0 if at.endswith(OF_RANK_0) else draw.randrange(ranks)
        call = draw.randint(1, 6) if phase in REPEATED else draw.choice((1, 1, 2)) if phase == "evaluation" else 1
        where = (phase, at, call, None if phase == "import" else rank)
        return cls(*where, draw.choice(VICTIMS), draw.choice(SIGNALS), draw.uniform(0.0, 8.0))


@dataclass
class Campaign:
    """Chains of kills over the cases, in turn, until there were `kills` of them."""

    bench: Bench
    seed: int
    cases: Sequence[str] = tuple(CASES)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    by: Counter[tuple[str, str]] = field(default_factory=Counter)
    missed: int = 0  # attempts that ended before the kill's moment came
    uncut: dict[str, tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=dict)

    def run(self, kills: int, each: int = 4) -> None:
        """Kill so often, `each` times in a chain at most. Raises AssertionError that names the chain and its seed."""
        self.python = interpreter(self.bench.folder / "python")
        phases = self._phases()
        number = 0
        while (left := kills - self.counts.total()) > 0:
            case = self.cases[number % len(self.cases)]
            draw = random.Random(f"{self.seed}-{number}")
            drawn = [Kill.drawn(draw, next(phases), CASES[case].ranks) for _ in range(min(each, left))]
            try:
                self._chain(case, number, drawn)
            except BaseException as error:
                told = "\n".join(map(str, drawn))
                error.add_note(f"seed {self.seed}, chain {number}, {case}:\n{told}\n{self.table()}")
                raise
            number += 1
            print(f"{self.counts.total()} of {kills} kills", file=sys.stderr, flush=True)

    def _phases(self) -> Iterator[str]:
        """All phases in a random order, again and again: each comes as often as the others."""
        draw = random.Random(self.seed)
        names = [*PHASES, ANY_TIME, ANY_TIME]
        while True:
            yield from draw.sample(names, len(names))

    def _chain(self, case: str, number: int, kills: Sequence[Kill]) -> None:
        """Kill a chain's attempts, let it end, and compare it with the uncut run."""
        wanted, measured = self._uncut(case)
        chain = self._made(case, f"chain-{number}")
        chain.measured(measured)
        attempt = 0
        for index, kill in enumerate(kills):
            attempt += 1
            if self._attempt(chain, attempt, kill, f"{number}-{index}"):
                self.counts[case, kill.phase] += 1
                self.by[kill.victim, kill.signal.name] += 1
            else:
                self.missed += 1
            if (chain.declared / f"step-{STEPS}.json").exists():
                break
        for _ in range(MOST_ATTEMPTS):
            attempt += 1
            ended = finish(chain.begin(attempt=attempt, python=self.python), LONGEST_SECONDS)
            if ended.status == 0:
                break
            assert ended.status == 75, f"status {ended.status}\n{ended.errors}"
        assert ended.status == 0, ended.errors
        until(lambda: not self.bench.processes(), "all processes of the run have ended", ALIVE_SECONDS)
        assert list(chain.work.glob(".partial-*")) == []
        assert_same(result(chain), wanted)

    def _attempt(self, chain: Chain, attempt: int, kill: Kill, name: str) -> bool:
        """Start an attempt and kill it; whether the kill's moment came before it ended."""
        hook = Hook(kill.at, str(self.bench.folder / f"hook-{name}"), "SIGSTOP", kill.rank, kill.call)
        at_a_phase = kill.phase != ANY_TIME
        job = chain.begin(attempt=attempt, python=self.python, **(hook.environment() if at_a_phase else {}))
        try:
            came = _wait(job, hook.happened) if at_a_phase else not _ended(job, kill.after)
            if came:
                self._kill(job, kill, hook.pid() if at_a_phase else None)
            ended = finish(job, LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job has not ended after {kill}") from None
        assert ended.status in (ENDS if came else {0, 75}) | {0}, f"{kill}: status {ended.status}\n{ended.errors}"
        until(lambda: not self.bench.processes(), "all processes of the run have ended", ALIVE_SECONDS)
        return came

    def _kill(self, job: subprocess.Popen[str], kill: Kill, stopped: int | None) -> None:
        """Send the signal to the victim, and then let go on what has stopped itself."""
        for process in self._victims(job, kill):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(kill.signal)
        if stopped:
            with suppress(psutil.NoSuchProcess):
                psutil.Process(stopped).send_signal(signal.SIGCONT)

    def _victims(self, job: subprocess.Popen[str], kill: Kill) -> list[psutil.Process]:
        """The victims as far as they have been started; else what there is of the run."""
        with suppress(psutil.NoSuchProcess):
            whole = psutil.Process(job.pid)
            launchers = [p for p in whole.children() if str(self.bench.folder) in " ".join(words(p))]
            ranks = [p for launcher in launchers for p in launcher.children()] or launchers
            every = [*ranks, *launchers, whole]
            if kill.victim == "all":
                return list(dict.fromkeys(every))
            chosen = {"one rank": ranks[-1:], "launcher": launchers, "job": [whole]}[kill.victim]
            return chosen or [whole]
        return []

    def _uncut(self, case: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the case's run ends with when nobody kills it, and what it has measured for later attempts."""
        if case not in self.uncut:
            chain = self._made(case, f"uncut-{list(CASES).index(case)}")
            chain.train()
            self.uncut[case] = result(chain), read_measured(chain.declared)
        return self.uncut[case]

    def _made(self, case: str, name: str) -> Chain:
        of = CASES[case]
        strategy = self.bench.strategy(f"each_step_{of.base}", base=of.base, imports=EACH_STEP)
        values = of.values | strategy
        return self.bench.chain(name, of.spec, total_steps=STEPS, evaluate_every_steps=EVALUATE_EVERY, **values)

    def table(self) -> str:
        """The kills so far, by phase and case, and by victim and signal."""
        phases = [*PHASES, ANY_TIME]
        lines = [f"{'':18}" + "".join(f"{phase:>11}" for phase in phases) + f"{'all':>6}"]
        for case in self.cases:
            found = [self.counts[case, phase] for phase in phases]
            lines.append(f"{case:18}" + "".join(f"{count:>11}" for count in found) + f"{sum(found):>6}")
        lines += [f"{victim}, {name}: {count}" for (victim, name), count in sorted(self.by.items())]
        return "\n".join([*lines, f"{self.counts.total()} kills; {self.missed} attempts ended before their moment"])


def _wait(job: subprocess.Popen[str], happened: Callable[[], bool]) -> bool:
    """Wait until a process has stopped itself, or the job has ended without it: False."""
    until(lambda: happened() or job.poll() is not None, "the moment has come", LONGEST_SECONDS)
    time.sleep(0.05)  # the others come to where they wait for it
    return happened()


def _ended(job: subprocess.Popen[str], seconds: float) -> bool:
    """Whether a job ends within so many seconds."""
    with suppress(subprocess.TimeoutExpired):
        job.wait(seconds)
    return job.poll() is not None
