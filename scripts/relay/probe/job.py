"""A probe's job: looks for the largest batch per device that fits, around the processes that try one size each.

From the config's own on, sizes double until one does not fit, and the interval is then halved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from relay.base import ending
from relay.base.errors import UserError
from relay.base.files import write_json
from relay.probe.tries import STEPS, Interrupted, Tries
from relay.run_folder import faults
from relay.spec.job import Job
from relay.spec.probe import Limits
from relay.spec.run import Probe, changed

FINENESS = 16  # a size is known to this part of itself: memory is not measured more finely


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


@dataclass(frozen=True)
class Outcome:
    """What a search has found: the largest size that fits, 0 where none does, and the record of it."""

    largest: int
    record: dict[str, Any]  # `reason` says why none fits


def run_probe(spec: Path, results: Path, output: Path, limits: Limits, attempt: int = 1) -> int:
    """Probe the run's setting for its largest batch, and write `output`; returns the status of `search_in_job`."""
    return search_in_job(spec, results, output, limits, attempt, "samples per device", _largest_batch)


def _largest_batch(run: Probe, tries: Tries) -> Outcome:
    search = Search(tries.limits.unit, tries.limits.first, tries.limits.most)
    search.run(lambda size: tries.fits(size, of_batch(run, size)))
    least = min(search.sizes)
    needed = f"{least} sample{'s' * (least > 1)} on each device, the fewest that it can take,"
    record = {
        "setting": run.id,
        "batch_per_device": search.largest or None,
        "limited_by": search.limited_by,
        "reason": None if search.largest else tries.why_none(least, needed),
        "too_large": search.too_large,
        "tried": tries.measurements(search.sizes, "batch_per_device"),
    }
    return Outcome(search.largest, record)


def search_in_job(
    spec: Path,
    results: Path,
    output: Path,
    limits: Limits,
    attempt: int,
    what: str,
    look: Callable[[Probe, Tries], Outcome],
) -> int:
    """Look for the largest size that fits, and write the record to `output`; returns the job's exit status.

    `what` names the sizes in the log. 0: done, also where nothing fits, with the reason; 1: a fault of the program's
    own, which a retry (`attempt` > 1) only repeats; 75: the processes were killed from outside, worth a retry.
    """
    run, job, work = Probe.read(spec), Job.read(spec), output.with_suffix("")
    if (ended := faults.begin(work, f"probe {run.id}", attempt)) is not None:
        return ended
    try:
        outcome = look(run, Tries(run, job, work, results, limits, what))
    except UserError as error:
        return ending.fault(f"probe {run.id}: {error}")
    except Interrupted as interrupted:
        return ending.say(interrupted.ending)
    write_json(output, outcome.record | {"limits": asdict(limits)})
    print(f"probe {run.id}: {outcome.record['reason'] or f'{outcome.largest} {what}'}", flush=True)
    return 0


def of_batch(run: Probe, batch_per_device: int) -> Probe:
    """The run for a few steps of that batch."""
    batch = batch_per_device * run.shape.devices
    per_epoch = run.dataset.train_count // batch
    return changed(run, global_batch_size=batch, steps_per_epoch=per_epoch, total_steps=STEPS, epochs=STEPS / per_epoch)
