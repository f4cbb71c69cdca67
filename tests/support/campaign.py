"""Kills of real segment jobs at a random instant or at a phase, and of scripts that are chains soon after a step.

At a phase, a process stops itself (`hooked`); then its victim is killed, and it goes on if it can.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from chain_results import result
from chain_runs import DROPOUT, EACH_STEP, ROOT, Chain, finish
from hooked import Hook, interpreter
from kills import LONGEST_SECONDS, VICTIMS, Attempt, Campaign, Kill
from living import until
from own_tasks import spec
from relay.run_folder import run_chain
from relay.spec.tasks import TaskSpec

STEPS = 14
EVALUATE_EVERY = 5
SMALL = {"width": 16, "depth": 2, "heads": 4}
GPT = spec("gpt-tiny", **SMALL, global_batch_size=8)
MIXTURE = spec("gpt-moe-tiny", **SMALL, global_batch_size=8)
TWO = {"launcher": "torchrun", "devices_per_node": 2}


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
    "load": ("relay.training.checkpoint:Trained.go_on",),
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
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@dataclass
class RunAttempt(Attempt):
    """A job of a run, in which a process may stop itself."""

    hook: Hook

    def moment(self, kill: Kill) -> bool:
        if kill.phase == ANY_TIME:
            return not self.ended_within(kill.after)
        over = self.job.poll
        until(lambda: self.hook.happened() or over() is not None, "the moment has come", LONGEST_SECONDS)
        time.sleep(0.05)  # the others come to where they wait for it
        return self.hook.happened()

    def released(self) -> None:
        if self.hook.happened():
            with suppress(psutil.NoSuchProcess):
                psutil.Process(self.hook.pid()).send_signal(signal.SIGCONT)

    def end(self) -> tuple[int, str]:
        ended = finish(self.job, LONGEST_SECONDS)
        return ended.status, ended.errors


@dataclass
class OfRuns(Campaign):
    """Kills of the runs of these cases."""

    cases: Sequence[str] = tuple(CASES)

    def __post_init__(self) -> None:
        self.python = interpreter(self.bench.folder / "python")
        self.measured: dict[str, Any] = {}
        self.phases = self._phases()

    def _phases(self) -> Iterator[str]:
        """All phases in a random order, again and again: each comes as often as the others."""
        draw = random.Random(self.seed)
        names = [*PHASES, ANY_TIME, ANY_TIME]
        while True:
            yield from draw.sample(names, len(names))

    def drawn(self, draw: random.Random, case: str, count: int) -> list[Kill]:
        return [_drawn(draw, next(self.phases), CASES[case].ranks) for _ in range(count)]

    def made(self, case: str, name: str) -> Chain:
        of = CASES[case]
        strategy = self.bench.strategy(f"each_step_{of.base}", base=of.base, imports=EACH_STEP)
        values = of.values | strategy
        chain = self.bench.chain(name, of.spec, total_steps=STEPS, evaluate_every_steps=EVALUATE_EVERY, **values)
        chain.measured(self.measured.get(case, {}))
        return chain

    def begin(self, training: Chain, number: int, kill: Kill | None) -> RunAttempt:
        if kill is None:
            return RunAttempt(training.work, training.begin(attempt=number), Hook("", ""))
        place = str(training.results / f"hook-{number}")
        hook = Hook(kill.at, place, "SIGSTOP", kill.rank, kill.call)
        stops = {} if kill.phase == ANY_TIME else hook.environment()
        job = training.begin(attempt=number, python=self.python, **stops)
        return RunAttempt(training.work, job, hook)

    def result(self, case: str, training: Chain) -> dict[str, Any]:
        self.measured.setdefault(case, run_chain.measured(training.work))
        return result(training)


def _drawn(draw: random.Random, phase: str, ranks: int) -> Kill:
    at = draw.choice(PHASES.get(phase, ("",)))
    rank = None if phase == "import" else 0 if at.endswith(OF_RANK_0) else draw.randrange(ranks)
    call = draw.randint(1, 6) if phase in REPEATED else draw.choice((1, 1, 2)) if phase == "evaluation" else 1
    return Kill(phase, draw.choice(VICTIMS), draw.choice(SIGNALS), at, call, rank, draw.uniform(0.0, 8.0))


# Scripts that are chains


SCRIPT = ROOT / "tests" / "support" / "chain_script.py"
RANKS = {"plain": 1, "ddp": 2, "fsdp": 2}
TO_SCRIPTS = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
AT_START = 0.3  # the share of kills that come before a step was taken, in imports, or at an end


class ScriptAttempt(Attempt):
    """One start of a script, through `relay-chain`."""

    def step(self) -> int:
        """The newest step that any rank has taken in this attempt; 0 before."""
        found = [0]
        for told in self.folder.glob("step-*"):
            with suppress(OSError, ValueError):
                found.append(int(told.read_text()))
        return max(found)

    def moment(self, kill: Kill) -> bool:
        over = self.job.poll
        until(lambda: self.step() >= kill.call or over() is not None, "the moment has come", LONGEST_SECONDS)
        return not self.ended_within(kill.after)

    def end(self) -> tuple[int, str]:
        return self.job.wait(LONGEST_SECONDS), (self.folder / "log").read_text()


@dataclass
class OfScripts(Campaign):
    """Kills of scripts of these kinds."""

    def drawn(self, draw: random.Random, case: str, count: int) -> list[Kill]:
        found = []
        for _ in range(count):
            phase, step, seconds = ("start", 0, 10.0) if draw.random() < AT_START else ("step", 1, 0.2)
            step *= draw.randint(1, 30 // RANKS[case])  # of so many that its training has
            how = draw.choice(VICTIMS), draw.choice(TO_SCRIPTS)
            found.append(Kill(phase, *how, call=step, after=draw.uniform(0.0, seconds)))
        return sorted(found, key=lambda kill: kill.call)  # or the later attempts would find the early steps done

    def made(self, case: str, name: str) -> tuple[str, Path]:
        folder = self.bench.folder / name
        folder.mkdir(parents=True)
        (folder / SCRIPT.name).write_text(SCRIPT.read_text())  # the folder's name is in each command line
        return case, folder

    def begin(self, training: tuple[str, Path], number: int, kill: Kill | None) -> ScriptAttempt:
        kind, folder = training
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS[kind])]
        launcher = [sys.executable, *(torchrun if kind != "plain" else [])]
        words = [sys.executable, "-m", "relay.chain", *launcher, folder / SCRIPT.name, kind, folder / "result"]
        own = {"PYTHONPATH": str(ROOT / "scripts"), "OMP_NUM_THREADS": "1"}
        for told in folder.glob("step-*"):
            told.unlink()
        with (folder / "log").open("ab") as log:
            given = {"cwd": folder, "env": os.environ | own, "stdout": log, "stderr": log}
            return ScriptAttempt(folder, subprocess.Popen(words, start_new_session=True, **given))

    def ends(self, kill: Kill) -> range:
        """Any: a script's launcher has its own."""
        return range(-64, 256)

    def result(self, case: str, training: tuple[str, Path]) -> list[dict[str, object]]:
        """What each rank ends with."""
        return [json.loads((training[1] / f"result-{rank}").read_text()) for rank in range(RANKS[case])]
