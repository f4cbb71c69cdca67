"""Kills of real scripts that are chains, at random: when, which process, by which signal; and what they end with.

A kill is drawn from a seed, so that it can be repeated. It comes at a random instant of the start, or soon after a
random step. Then no process of the script may be alive, the next attempt goes on, and the last one ends bit for bit as
one that nobody killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from living import until, words

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "support" / "chain_script.py"
WORLD_SIZES = {"plain": 1, "ddp": 2, "fsdp": 2}
STEPS = {"plain": 30, "ddp": 15, "fsdp": 15}
VICTIMS = ("a rank", "launcher", "job", "all")
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
AT_START = 0.3  # the share of kills that come before a step was taken, in imports, or at an end
STARTING_SECONDS = 10.0
LONGEST_SECONDS = 400.0  # of an attempt, on a busy machine
ALIVE_SECONDS = 120.0  # after a kill, all processes have ended
MOST_ATTEMPTS = 3  # to end a training that is not killed any more


@dataclass(frozen=True)
class Kill:
    """`step`: it comes `after` so many seconds after this step was taken; None: after the attempt's start."""

    step: int | None
    after: float
    victim: str
    signal: signal.Signals

    @classmethod
    def drawn(cls, draw: random.Random, kind: str) -> Kill:
        at_start = draw.random() < AT_START
        step = None if at_start else draw.randint(1, STEPS[kind])
        after = draw.uniform(0.0, STARTING_SECONDS if at_start else 0.2)
        return cls(step, after, draw.choice(VICTIMS), draw.choice(SIGNALS))


@dataclass
class Attempt:
    """One start of a script in a folder, through `relay-chain`, and its processes."""

    kind: str
    folder: Path
    log: Path = field(init=False)
    job: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        script = self.folder / SCRIPT.name  # the folder's name is in each command line
        script.write_text(SCRIPT.read_text())
        self.log = self.folder / "log"
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORLD_SIZES[self.kind])]
        launcher = [sys.executable, *(torchrun if self.kind != "plain" else [])]
        own = {"PYTHONPATH": str(ROOT / "scripts"), "OMP_NUM_THREADS": "1"}
        for told in self.folder.glob("step-*"):
            told.unlink()
        with self.log.open("ab") as log:
            self.job = subprocess.Popen(
                [sys.executable, "-m", "relay.chain", *launcher, str(script), self.kind, str(self.folder / "result")],
                cwd=self.folder,
                env=os.environ | own,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def step(self) -> int:
        """The newest step that any rank has taken in this attempt; 0 before."""
        found = [0]
        for told in self.folder.glob("step-*"):
            with suppress(OSError, ValueError):
                found.append(int(told.read_text()))
        return max(found)

    def processes(self) -> list[psutil.Process]:
        """All processes of the script that are alive, the first started first."""
        return [each for each in psutil.process_iter() if str(self.folder / SCRIPT.name) in words(each)]

    def victims(self, victim: str) -> list[psutil.Process]:
        """The victims as far as they have been started; else what there is."""
        every = self.processes()
        launchers = [each for each in every if "torch.distributed.run" in words(each)]
        jobs = [each for each in every if each.pid == self.job.pid]
        ranks = [each for each in every if each not in (*launchers, *jobs)]
        chosen = {"a rank": random.sample(ranks, min(1, len(ranks))), "launcher": launchers, "job": jobs, "all": every}
        return chosen[victim] or every

    def kill(self, kill: Kill) -> bool:
        """Wait for the kill's moment, and kill; False where the attempt has ended before."""
        began = time.monotonic()
        while (self.step() < kill.step) if kill.step else (time.monotonic() < began + kill.after):
            if self.job.poll() is not None:
                return False
            assert time.monotonic() < began + LONGEST_SECONDS, "the moment has not come"
            time.sleep(0.01)
        time.sleep(kill.after if kill.step else 0.0)
        if self.job.poll() is not None:
            return False
        for process in self.victims(kill.victim):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(kill.signal)
        return True

    def end(self) -> int:
        """Wait for the end of the job and of all its processes; its status, negative where a signal ended it."""
        status = self.job.wait(LONGEST_SECONDS)
        until(lambda: not self.processes(), "all processes have ended", ALIVE_SECONDS)
        return status

    def stop(self) -> None:
        """End whatever is left, at once."""
        self.job.kill()
        self.job.wait()
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()


@dataclass
class Kills:
    """Chains of killed attempts of one kind, and the training that nobody killed."""

    folder: Path
    kind: str
    seed: int
    kills: int = 0
    missed: int = 0  # attempts that ended before the kill's moment came
    chains: int = 0
    by: Counter[str] = field(default_factory=Counter)

    def run(self, kills: int, each: int = 4) -> None:
        """Kill so often, `each` times in a chain at most. Raises AssertionError that names the chain and its seed."""
        wanted = self._train(self.folder / f"{self.kind}-uncut", [])
        while self.kills < kills:
            draw = random.Random(f"{self.seed}-{self.kind}-{self.chains}")
            drawn = [Kill.drawn(draw, self.kind) for _ in range(min(each, kills - self.kills))]
            drawn.sort(key=lambda kill: kill.step or 0)  # or the later attempts would find the early steps done
            folder = self.folder / f"{self.kind}-{self.chains}"
            try:
                assert self._train(folder, drawn) == wanted
            except BaseException as error:
                told = [f"seed {self.seed}, {folder}", *map(str, drawn), (folder / "log").read_text()]
                error.add_note("\n".join(told))
                raise
            self.chains += 1
            print(f"{self.kind}: {self.kills} kills, {self.chains} chains bit for bit", file=sys.stderr, flush=True)

    def _train(self, folder: Path, kills: list[Kill]) -> list[dict[str, object]]:
        """Train in a folder, killed so often, until it ends; what each rank ends with."""
        folder.mkdir(parents=True)
        for kill in [*kills, *[None] * MOST_ATTEMPTS]:
            attempt = Attempt(self.kind, folder)
            try:
                came = kill is not None and attempt.kill(kill)
                status = attempt.end()
            finally:
                attempt.stop()
            if kill and came:
                self.kills += 1
                self.by[f"{kill.victim}, {kill.signal.name}"] += 1
                self.by["at the start" if kill.step is None else "after a step"] += 1
            else:
                self.missed += kill is not None
                assert status == 0, f"status {status}"
            if status == 0:
                break
        assert status == 0, f"status {status}"
        assert not list((folder / "checkpoints").glob(".partial-*"))
        return [json.loads((folder / f"result-{rank}").read_text()) for rank in range(WORLD_SIZES[self.kind])]

    def table(self) -> str:
        """What was done, in lines."""
        told = f"{self.kind}: {self.kills} kills in {self.chains} chains, all bit for bit; {self.missed} came too late"
        return "\n".join([told, *(f"  {name}: {count}" for name, count in sorted(self.by.items()))])
