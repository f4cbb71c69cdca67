"""Kills of real scripts that are chains: at a random instant of the start, or soon after a random step."""

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kills import LONGEST_SECONDS, VICTIMS, Attempt, Campaign, Kill
from living import until

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "support" / "chain_script.py"
RANKS = {"plain": 1, "ddp": 2, "fsdp": 2}
STEPS = {"plain": 30, "ddp": 15, "fsdp": 15}
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
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
            step *= draw.randint(1, STEPS[case])
            how = draw.choice(VICTIMS), draw.choice(SIGNALS)
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
