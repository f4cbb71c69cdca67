"""A probe's job: looks for the largest size that fits, around the processes that try one size each.

A size is a batch per device, or of the search for the largest model a depth (`largest_model.py`). From the first one
on, sizes double until one does not fit, and the interval is then halved.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from relay.base import ending
from relay.base.errors import UserError
from relay.base.files import write_json
from relay.probe.tries import STEPS, Interrupted, Tries
from relay.run_folder import faults
from relay.spec.job import Job
from relay.spec.labels import counted
from relay.spec.run import Probe, changed

FINENESS = 16  # a size is known to this part of itself: memory is not measured more finely


@dataclass
class Search:
    """What was found so far. Sizes are multiples of `unit`; `measured` is what their processes took, by size."""

    unit: int
    first: int
    most: int
    measured: dict[int, dict[str, Any]] = field(default_factory=dict)
    largest: int = 0
    too_large: int | None = None
    limited_by: str = "memory"
    sizes: list[int] = field(default_factory=list)
    key: ClassVar[str] = "batch_per_device"  # a size's name in the record, and in words
    words: ClassVar[str] = "samples per device"

    @classmethod
    def of(cls, run: Probe, tries: Tries) -> Self:
        """The search for a run."""
        return cls(run.limits.unit, run.limits.first, run.limits.most, tries.measured)

    @staticmethod
    def of_size(run: Probe, size: int) -> Probe:
        """The run for a few steps of that size."""
        return of_batch(run, size)

    def run(self, fits: Callable[[int], bool]) -> None:
        """Narrow down until the next size is known not to fit, the most is reached, or the time is over.

        `fits(size)` tries a size; it raises TimeoutError where there is no time for it.
        """
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

    def fewest(self, size: int) -> str:
        """What needs too much where nothing fits."""
        return f"{counted(size, 'sample')} on each device, the fewest that it can take,"

    def record(self, run: Probe, tries: Tries) -> dict[str, Any]:
        """What was found: the largest size that fits, and what limits it; or the `reason` why none fits."""
        least = min(self.sizes)
        return {
            "setting": run.id,
            self.key: self.largest or None,
            "limited_by": self.limited_by,
            "reason": None if self.largest else tries.why_none(least, self.fewest(least)),
            "too_large": self.too_large,
            "tried": [self.measured[size] | {self.key: size} for size in self.sizes if size in self.measured],
        }


def run_probe(spec: Path, results: Path, output: Path, attempt: int = 1, kind: type[Search] = Search) -> int:
    """Look for the largest size that fits, and write the record to `output`; returns the job's exit status.

    0: done, also where nothing fits, with the reason; 1: a fault of the program's own, which a retry (`attempt` > 1)
    only repeats; 75: the processes were killed from outside, worth a retry.
    """
    run, job, work = Probe.read(spec), Job.read(spec), output.with_suffix(".work")
    if (ended := faults.begin(work, f"probe {run.id}", attempt)) is not None:
        return ended
    try:
        tries = Tries(run, job, work, results, kind.words)
        search = kind.of(run, tries)
        search.run(lambda size: tries.fits(size, kind.of_size(run, size)))
    except UserError as error:
        return ending.fault(f"probe {run.id}: {error}")
    except Interrupted as interrupted:
        return ending.say(interrupted.ending)
    record = search.record(run, tries)
    write_json(output, record | {"limits": asdict(run.limits)})
    print(f"probe {run.id}: {record['reason'] or f'{search.largest} {kind.words}'}", flush=True)
    return 0


def of_batch(run: Probe, batch_per_device: int) -> Probe:
    """The run for a few steps of that batch."""
    batch = batch_per_device * run.shape.devices
    per_epoch = run.dataset.train_count // batch
    return changed(run, global_batch_size=batch, steps_per_epoch=per_epoch, total_steps=STEPS, epochs=STEPS / per_epoch)
