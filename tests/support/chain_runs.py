"""Short real runs for the tests of a chain: their datasets, their files, and their jobs as real processes.

Every path of a test lies in its own temporary folder, which names the processes that the test started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

from living import LONGEST_SECONDS, until, words
from own_tasks import OWN, data_of, spec
from relay.base.lifeline import DRIVER
from relay.run_folder.places import Places
from relay.run_folder.run_chain import RunChain
from relay.spec.run import Run
from relay.spec.strategy_files import read
from relay.spec.tasks import TaskSpec
from relay.training import job
from specifications import made as made_of

ROOT = Path(__file__).resolve().parents[2]
MAIN = ROOT / "scripts" / "main.py"
BUILT_IN = ROOT / "scripts" / "relay" / "strategies"

# Dropout makes the state of the random generators count; Adadelta has a state of its own.
DROPOUT = spec(str(OWN / "dropout.py"))
# The counts are no multiples of any batch.
LIKE_CIFAR = spec("lenet-synthetic", train_count=301, test_count=77)
DIGITS, VECTORS, TEXT = spec("lenet-digits"), spec("linear-random10"), spec("gpt-tiny")

STRATEGY = """\
from pathlib import Path
import os
import time
{imports}
from relay import strategies
from relay.spec.requirements import Requirements

Base = strategies.load({base!r})


class Made(Base):
    requirements = {requirements}

    def train_step(self, batch):
        self.steps = getattr(self, "steps", 0) + 1
        {before}
        return super().train_step(batch)
"""
# For the imports of such a strategy: its ranks save at each step that has no save to wait for, in the background.
EACH_STEP = "from relay.chain import peers\npeers.AGREE_SECONDS = 0.0"


@dataclass
class Bench:
    """A test's folder, from which its runs and their strategies are made."""

    folder: Path
    prepared: Path

    def chain(self, name: str, its: TaskSpec = DROPOUT, **values: Any) -> Chain:
        """A run's declared files, as the planner writes them: `cpu` for 60 steps unless `values` say otherwise."""
        results = self.folder / name
        results.mkdir()
        (results / "datasets").symlink_to(self.prepared)
        chain = Chain(results, short_run(its, **{"dataset": data_of(its, self.prepared)} | values))
        chain.run.write(chain.declared / "run.json")
        chain.start_anew("first")
        return chain

    def strategy(self, name: str, before: str = "pass", *, base: str = "cpu", imports: str = "") -> dict[str, str]:
        """A strategy of a further folder that does something `before` each step of a built-in one."""
        path = self.folder / "strategies" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        requirements = read(BUILT_IN / f"{base}.py")
        path.write_text(STRATEGY.format(base=base, before=before, imports=imports, requirements=requirements))
        return {"strategy": name, "strategy_file": str(path)}

    def processes(self) -> list[psutil.Process]:
        """Everything alive that works in this test's folder: jobs, launchers, trainers, and loaders' workers."""
        return [p for p in psutil.process_iter() if p.pid != os.getpid() and str(self.folder) in " ".join(words(p))]

    def kill(self) -> None:
        """SIGKILL for all of them, as when a job's time is over or its node is lost."""
        while found := self.processes():
            for process in found:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(0.05)  # not psutil's waiting: it would take a job's exit status from its Popen


def short_run(its: TaskSpec, **values: Any) -> Run:
    """A run of the task on one CPU process."""
    data = values.get("dataset") or data_of(its)
    batch = its.global_batch_size
    per_epoch = data.train_count // batch
    file = str(BUILT_IN / f"{values.get('strategy', 'cpu')}.py")
    defaults: dict[str, Any] = {"id": "run-1", "setting_id": "setting-1", "repeat": 0, "seed": 3, "task": its}
    defaults |= {"dataset": data, "strategy": "cpu", "strategy_file": file, "global_batch_size": batch}
    defaults |= {"steps_per_epoch": per_epoch, "total_steps": 60, "evaluate_every_steps": per_epoch}
    # A checkpoint with every agreement of the ranks: at the first step, then each second.
    merged = defaults | {"warmup_steps": 2, "checkpoint_minutes": 0.0} | values
    return made_of(Run, epochs=merged["total_steps"] / per_epoch, **merged)


DDP = {"strategy": "ddp", "launcher": "torchrun", "devices_per_node": 2}


@dataclass
class Chain:
    """One run's chain, driven through `relay train` as its jobs are."""

    results: Path
    run: Run

    @property
    def declared(self) -> Path:
        """run.json, start.json and the segments' states."""
        return self.results / "runs" / self.run.id

    @property
    def work(self) -> Path:
        """Rolling checkpoints and records."""
        return self.results / "checkpoints" / self.run.id

    def start_anew(self, generation: str) -> None:
        """What the rule `start` does."""
        (self.declared / "start.json").write_text(json.dumps({"generation": generation}))

    def planned(self, name: str, its: TaskSpec | None = None, **values: Any) -> Chain:
        """Another run of the same results, not begun: like this one, but for its strategy and what is said."""
        length = self.run.length
        chosen = {"precision": self.run.computation.precision, "total_steps": length.total_steps}
        chosen |= {"evaluate_every_steps": length.evaluate_every_steps, **values, "id": name, "setting_id": name}
        chosen.setdefault("dataset", data_of(its or self.run.task, (self.results / "datasets").resolve()))
        made = Chain(self.results, short_run(its or self.run.task, **chosen))
        made.run.write(made.declared / "run.json")
        made.start_anew("first")
        return made

    def measured(self, values: dict[str, Any]) -> None:
        """What an earlier job of this chain would have measured."""
        self.work.mkdir(parents=True, exist_ok=True)
        RunChain(generation="first", code="", strategy_source="", measured=values).write(self.work)

    def begin(
        self, first: int = 0, last: int | None = None, *, attempt: int = 1, python: str | Path = "", **environment: str
    ) -> subprocess.Popen[str]:
        """Start a segment's job, in a process group of its own; by default the whole run, on the tests' own Python."""
        last = self.run.length.total_steps if last is None else last
        words = f"train --run {self.run.id} --first {first} --last {last} --attempt {attempt} --results".split()
        command = [str(python or sys.executable), str(MAIN), *words, str(self.results)]
        # The tests' process is its driver: workers are forks of one that has torch imported, as on a user's machine.
        driver = {} if python else {DRIVER: f"{os.getpid()} {(self.results / 'datasets').resolve()}"}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, start_new_session=True, env=os.environ | driver | environment, **pipes)

    def segment(self, first: int = 0, last: int | None = None, **given: Any) -> Ended:
        """Run a segment's job to its end."""
        return finish(self.begin(first, last, **given))

    def forked(self, first: int = 0, last: int | None = None, *, attempt: int = 1) -> Ended:
        """As `segment`, in forks that have torch imported: where the test is about what the processes compute."""
        import preloaded  # with torch

        last = self.run.length.total_steps if last is None else last
        with (
            redirect_stdout(StringIO()) as output,
            redirect_stderr(StringIO()) as errors,
            mock.patch.object(job, "launch", preloaded.start),
        ):
            status = job.run_segment(Places(self.results, self.run.id), first, last, attempt)
        return Ended(status, output.getvalue(), errors.getvalue())

    def train(self, *, forked: bool = False) -> Chain:
        """The whole run as one uncut segment."""
        ended = self.forked() if forked else self.segment()
        assert ended.status == 0, ended.errors
        return self

    def checkpoints(self) -> list[int]:
        """Steps of which a complete checkpoint is there."""
        return sorted(int(p.parent.name[5:]) for p in self.work.glob("step-*/manifest.json"))

    def started_at(self) -> list[int]:
        """The step at which each attempt that came so far went on."""
        lines = [json.loads(p.read_text().splitlines()[0]) for p in sorted(self.work.glob("records/*.jsonl"))]
        return [line["start"] for line in lines]

    def fault(self) -> dict[str, Any]:
        """What the trainer recorded of a fault of its own."""
        return json.loads((self.work / "fault.json").read_text())


@dataclass
class Ended:
    """How a job ended."""

    status: int
    output: str
    errors: str


def finish(job: subprocess.Popen[str], seconds: float = LONGEST_SECONDS) -> Ended:
    """Wait for a job's end."""
    output, errors = job.communicate(timeout=seconds)
    return Ended(job.returncode, output, errors)


def wait_until(holds: Callable[[], object], job: subprocess.Popen[str]) -> None:
    """Wait until something holds while the job runs: a test that acts on a job which has ended would prove nothing."""
    until(lambda: holds() or job.poll() is not None, "it holds")
    assert job.poll() is None, f"the job ended too early:\n{job.communicate()[1]}"
