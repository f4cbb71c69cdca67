"""Trying one size of a probe: fresh processes that train a few steps, and what they took.

Each size has its own processes: what an earlier one has left in memory is not counted, and a rank without memory leaves
no other waiting.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relay.base.ending import Ending
from relay.base.errors import NoRoom, Told
from relay.base.files import read_json
from relay.launch.launcher import launch
from relay.run_folder import faults
from relay.run_folder.known_faults import Kind
from relay.run_folder.places import dataset_folder
from relay.run_folder.snapshot import freeze
from relay.spec.job import Job
from relay.spec.run import Probe

STEPS = 3  # the optimiser's state comes with the first; buffers that are allocated late with the second
Start = Callable[[Path, str, Path, list[str], Path], int]


class Interrupted(Exception):
    """The processes were ended by something that passes, or is another node's: `ending` says what."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.what)
        self.ending = ending


class Tries:
    """Starts the processes for one size after another, and keeps what they measured, by size.

    `what` names a size in the log. `refusal` is what the last process without memory said.
    """

    def __init__(
        self, run: Probe, job: Job | None, work: Path, results: Path, what: str, start: Start = launch
    ) -> None:
        self.run, self.job, self.work, self.what, self.start = run, job, work, what, start
        self.dataset = dataset_folder(results, run.dataset)
        self.code = freeze(Path(run.strategy.file), run.task.file, folder=results / "code")
        self.deadline, self.longest_seconds = time.monotonic() + run.limits.minutes * 60, 0.0
        self.measured: dict[int, dict[str, Any]] = {}
        self.refusal = ""

    def fits(self, size: int, run: Probe) -> bool:
        """Whether the run, which has this size, fits. Raises TimeoutError, Told for a fault, Interrupted."""
        if self.measured and time.monotonic() + self.longest_seconds > self.deadline:
            raise TimeoutError
        started = time.monotonic()
        measured = self._try(run)
        self.longest_seconds = max(self.longest_seconds, time.monotonic() - started)
        self.measured[size] = measured
        peak, budget = measured["peak_memory_bytes"], measured["budget_bytes"]
        result = self.refusal if peak is None else f"{peak / 2**20:.0f} MB of {budget / 2**20:.0f} MB"
        print(f"probe {self.run.id}: {size} {self.what}: {result}", flush=True)
        return peak is not None and peak <= budget

    def _try(self, run: Probe) -> dict[str, Any]:
        spec, output = self.work / "probe.json", self.work / "measured.json"
        output.unlink(missing_ok=True)
        run.write(spec, self.job)
        arguments = ["--spec", str(spec), "--dataset", str(self.dataset), "--output", str(output)]
        status = self.start(spec, "probe.process", self.work, arguments, self.code)
        measured: dict[str, Any] | None = read_json(output)
        if measured:
            return measured
        fault = faults.collect(self.work)
        if fault is None or fault.again():
            raise Interrupted(faults.outcome(fault, f"probe {self.run.id}", status))
        if fault.kind != NoRoom.__name__ and not fault.is_a(Kind.MEMORY):
            raise Told(fault.error, fault.advice)
        faults.forget(self.work)
        self.refusal = fault.error
        return {"peak_memory_bytes": None, "budget_bytes": None, "samples_per_second": None}

    def why_none(self, least: int, needed: str) -> str:
        """Why not even the least size fits, in one line; `needed` says what it is."""
        measured = self.measured[least]
        if measured["peak_memory_bytes"] is None:
            return f"{needed} do not fit: {self.refusal}; give it more memory (memory_mb_per_node, or another GPU)"
        peak, budget = (measured[name] / 2**20 for name in ("peak_memory_bytes", "budget_bytes"))
        return f"{needed} take {peak:.0f} MB, the budget is {budget:.0f} MB; give it more (memory_mb_per_node)"
