"""The workflow's driver on this machine, as a process that tests start, signal and kill."""

import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import yaml

from living import LONGEST_SECONDS
from plans import ROOT, plan
from relay.base.files import write_json
from relay.base.lifeline import DRIVER
from relay.chain import sealed
from relay.config.config import load
from relay.run_folder import results_folder
from relay.spec.run import Run

LONG = 5000  # epochs: far more than a test lasts


class LocalDriver:
    """A folder in which runs of one config are driven; `run` is the first of them."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder = folder
        self.config = {"repeats": 1, "epochs": LONG, "gate": {"steps": 20}, **config}
        self.started: list[subprocess.Popen[str]] = []
        (folder / "mine.yaml").write_text(yaml.safe_dump(self.config))

    @cached_property
    def run(self) -> Run:
        """Planned once: tests ask again and again for what lies in its folder."""
        return plan(load(self.config), root=ROOT).runs[0]

    @property
    def trained(self) -> str:
        """The target that trains the run, without its proof, whose verdict is there."""
        found = plan(load(self.config), root=ROOT)
        results, gate = self.folder / "results", found.gate(found.runs[0])
        write_json(results / "layout.json", {"layout": results_folder.LAYOUT})
        write_json(results / "equivalence" / "gates" / gate / "verdict.json", {"gate": gate, "equivalent": True})
        return f"results/runs/{found.runs[0].id}/summary.json"

    @property
    def work(self) -> Path:
        return self.folder / "results" / "checkpoints" / self.run.id

    def start(self, *arguments: str, profile: bool = True) -> Any:
        """A driver in a session of its own, all that it prints in one pipe."""
        given = ["--profile", str(ROOT / "profiles" / "local")] if profile else []
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), *given]
        process = subprocess.Popen(
            [*command, *arguments, "--directory", str(self.folder), "--configfile", str(self.folder / "mine.yaml")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=as_in_a_terminal,  # noqa: PLW1509  # it only sets signals
            env={name: value for name, value in os.environ.items() if name not in (DRIVER, "SNAKEMAKE_PROFILE")}
            | {"PYTHONFAULTHANDLER": "1"},
        )
        self.started.append(process)
        return process

    def call(self, *arguments: str, **given: Any) -> tuple[int, str]:
        """A driver run to its end: exit status, and all that it printed."""
        process = self.start(*arguments, **given)
        printed, _ = process.communicate(timeout=LONGEST_SECONDS)
        return process.returncode, printed

    def ended(self, process: subprocess.Popen[str], seconds: float = LONGEST_SECONDS) -> str:
        """All that a driver has printed, when it has ended. If it does not, the test fails with where it waits."""
        try:
            return process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            here = [each for each in psutil.process_iter(["cwd"]) if each.info["cwd"] == str(self.folder)]
            told = [f"{each.pid} of {each.ppid()}, {each.status()}: {shlex.join(each.cmdline())}" for each in here]
            lines = [f"the driver has not ended after {seconds} s (its status: {process.poll()})", *told]
            for each in here:  # Python then says where each thread is
                each.send_signal(signal.SIGABRT)
            with suppress(subprocess.TimeoutExpired):
                lines.append(process.communicate(timeout=LONGEST_SECONDS)[0])
            lines.append(self.log())
            raise AssertionError("\n".join(lines)) from None

    def processes(self) -> list[psutil.Process]:
        """What drivers of this folder have started and is still alive, without the drivers."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                mark = process.environ().get(DRIVER, "")
                if mark.endswith(f" {self.folder}") and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def steps(self) -> list[int]:
        """The run's complete checkpoints, newest first."""
        return sealed.complete(self.work)

    def log(self) -> str:
        """What the logs of the run's segments say, and those of their earlier attempts."""
        logs = (self.folder / "results" / "logs" / "segment" / self.run.id).glob("*.log")
        return "".join(path.read_text() for path in sorted(logs))

    def trains(self) -> bool:
        """Whether an attempt has begun to train."""
        return any(path.stat().st_size for path in self.work.glob("records/*.jsonl"))

    def end(self) -> None:
        """No process outlives the test."""
        for process in self.started:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        while found := self.processes():
            for left in found:
                with suppress(psutil.NoSuchProcess):
                    left.kill()
            time.sleep(0.05)


def as_in_a_terminal() -> None:
    """The signals' usual meaning, whatever pytest was started under."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
