"""A probe's job: looks for the largest batch per device that fits, around the processes that try one size each.

From the config's own on, sizes double until one does not fit, and the interval is then halved. Each size has fresh
processes: what an earlier one has left in memory is not counted, and a rank without memory leaves no other waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relay.base import ending
from relay.base.errors import NoRoom, UserError
from relay.base.files import read_json, write_json
from relay.launch.launcher import launch
from relay.run_folder import faults
from relay.run_folder.places import dataset_folder
from relay.run_folder.snapshot import freeze
from relay.spec.job import Job
from relay.spec.probe import Limits
from relay.spec.run import Probe, changed

STEPS = 3  # the optimiser's state comes with the first; buffers that are allocated late with the second
FINENESS = 16  # a size is known to this part of itself: memory is not measured more finely


class Interrupted(Exception):
    """The processes ended without a word."""


@dataclass
class Search:
    """What was found so far. `fits(size)` tries a size; it raises TimeoutError where there is no time for it."""

    unit: int
    first: int
    most: int
    largest: int = 0
    too_large: int | None = None
    limited_by: str = "memory"
    sizes: list[int] = field(default_factory=list)

    def run(self, fits: Callable[[int], bool]) -> None:
        """Narrow down until the next size is known not to fit, the most is reached, or the time is over."""
        try:
            while (size := self._next()) is not None:
                self.sizes.append(size)
                if fits(size):
                    self.largest = size
                else:
                    self.too_large = size
        except TimeoutError:
            self.limited_by = "minutes"
        if self.largest == self.most:
            self.limited_by = "most"

    def _next(self) -> int | None:
        if self.largest == self.most:
            return None
        if self.too_large is None:
            return min(2 * self.largest or self.first, self.most)
        if self.too_large - self.largest <= max(self.unit, self.largest // FINENESS):
            return None
        middle = (self.largest + self.too_large) // 2
        return max(self.largest + self.unit, middle // self.unit * self.unit)


def run_probe(spec: Path, results: Path, output: Path, limits: Limits, attempt: int = 1) -> int:
    """Probe the run's setting and write `output`; returns the job's exit status.

    0: done, also where nothing fits, with the reason; 1: a fault of the program's own, which a retry (`attempt` > 1)
    only repeats; 75: the processes were killed from outside, worth a retry.
    """
    run, job, work = Probe.read(spec), Job.read(spec), output.with_suffix("")
    if (ended := faults.begin(work, f"probe {run.id}", attempt)) is not None:
        return ended
    tries = _Tries(run, job, work, results, limits)
    search = Search(limits.unit, limits.first, limits.most)
    try:
        search.run(tries.fits)
    except UserError as error:
        return ending.fault(f"probe {run.id}: {error}")
    except Interrupted as status:
        return ending.interrupted(f"probe {run.id}: its processes were killed (status {status})")
    found = {
        "setting": run.id,
        "batch_per_device": search.largest or None,
        "limited_by": search.limited_by,
        "reason": None if search.largest else tries.why_none(search),
        "too_large": search.too_large,
        "tried": [tries.measured[size] | {"batch_per_device": size} for size in search.sizes if size in tries.measured],
    }
    write_json(output, found)
    print(f"probe {run.id}: {found['reason'] or f'{search.largest} samples per device'}", flush=True)
    return 0


class _Tries:
    """Starts the processes for one size after another, and keeps what they measured."""

    def __init__(self, run: Probe, job: Job | None, work: Path, results: Path, limits: Limits) -> None:
        self.run, self.job, self.work, self.limits = run, job, work, limits
        self.dataset = dataset_folder(results, run.dataset)
        self.code = freeze(Path(run.strategy.file), results / "code")
        self.deadline, self.longest_seconds = time.monotonic() + limits.minutes * 60, 0.0
        self.measured: dict[int, dict[str, Any]] = {}
        self.refusal = ""

    def fits(self, size: int) -> bool:
        """Whether so many samples per device fit. Raises TimeoutError, UserError for a fault, Interrupted."""
        if self.measured and time.monotonic() + self.longest_seconds > self.deadline:
            raise TimeoutError
        started = time.monotonic()
        measured = self._try(size)
        self.longest_seconds = max(self.longest_seconds, time.monotonic() - started)
        self.measured[size] = measured
        peak, budget = measured["peak_memory_bytes"], measured["budget_bytes"]
        told = self.refusal if peak is None else f"{peak / 2**20:.0f} MB of {budget / 2**20:.0f} MB"
        print(f"probe {self.run.id}: {size} samples per device: {told}", flush=True)
        return peak is not None and peak <= budget

    def _try(self, size: int) -> dict[str, Any]:
        batch = size * self.run.shape.devices
        per_epoch = self.run.dataset.train_count // batch
        spec, output = self.work / "probe.json", self.work / "measured.json"
        output.unlink(missing_ok=True)
        length: dict[str, Any] = {"steps_per_epoch": per_epoch, "total_steps": STEPS, "epochs": STEPS / per_epoch}
        changed(self.run, global_batch_size=batch, **length).write(spec, self.job)
        arguments = ["--spec", str(spec), "--dataset", str(self.dataset), "--output", str(output)]
        arguments += ["--memory-fraction", str(self.limits.memory_fraction)]
        memory_mb = self.job.memory_mb if self.job else self.limits.node_memory_mb
        arguments += ["--memory-mb", str(memory_mb)] if memory_mb else []
        status = launch(spec, "probe.process", self.work, arguments, self.code)
        found: dict[str, Any] | None = read_json(output)
        if found:
            return found
        fault = faults.collect(self.work)
        if fault is None:
            raise Interrupted(status)
        if fault["kind"] != NoRoom.__name__:
            raise UserError(fault["error"])
        faults.forget(self.work)
        self.refusal = fault["error"]
        return {"peak_memory_bytes": None, "budget_bytes": None, "samples_per_second": None}

    def why_none(self, search: Search) -> str:
        """Why no size fits, in one line."""
        measured = self.measured[least := min(search.sizes)]
        needed = f"{least} sample{'s' * (least > 1)} on each device, the fewest that it can take,"
        if measured["peak_memory_bytes"] is None:
            return f"{needed} do not fit: {self.refusal}; give it more memory (memory_mb_per_node, or another GPU)"
        peak, budget = (measured[name] / 2**20 for name in ("peak_memory_bytes", "budget_bytes"))
        return f"{needed} take {peak:.0f} MB, the budget is {budget:.0f} MB; give it more (memory_mb_per_node)"
