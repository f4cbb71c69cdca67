"""How far the driver's jobs have come: a view that is drawn again and again on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from relay.base.clock import clock
from relay.base.errors import UserError
from relay.driver.region import Region, is_terminal
from relay.driver.view import Job, View
from relay.run_folder import pace
from relay.run_folder.places import Places
from relay.spec.run import Run
from relay.status import runs

RESULTS = Path("results")
TERMINAL_SECONDS = 3.0  # between two views on a terminal. Measured jobs run beside the driver: it does not do more
FILE_SECONDS = 60.0  # between two lines elsewhere


@dataclass(frozen=True)
class Training:
    """A job that trains: its run, the step at which it ends, and the job in words."""

    run: str
    last: int
    words: str


@dataclass
class Progress:
    """Shows what `training` and `jobs` say is under way, by Snakemake's numbers of the jobs.

    `view` makes what a terminal shows; None: nothing is drawn. `done`: how many of how many jobs are done. `told`:
    whether lines are printed where there is no terminal.
    """

    stream: TextIO = field(default_factory=lambda: sys.stderr)
    view: View | None = None
    told: bool = True
    training: dict[int, Training] = field(default_factory=dict)
    jobs: dict[int, Job] = field(default_factory=dict)
    done: tuple[int, int] | None = None
    _over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.region = Region(self.stream)

    @property
    def short(self) -> bool:
        """Whether short lines, or a view, take the place of Snakemake's lines about each job."""
        return self.view is not None

    @property
    def drawn(self) -> bool:
        """Whether a view is drawn."""
        return self.short and is_terminal(self.stream)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """While this lasts, a thread shows it."""
        thread = threading.Thread(target=self._show, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            self.clear()

    def say(self, line: str) -> None:
        """Print a line above the view."""
        with suppress(OSError):  # a terminal that was closed
            self.region.clear(f"{line}\n")

    def clear(self) -> None:
        """Make room for another line."""
        with suppress(OSError):
            self.region.clear()

    def _show(self) -> None:
        with suppress(OSError):  # a terminal that was closed
            while not self._over.wait(TERMINAL_SECONDS if self.drawn else FILE_SECONDS):
                if self.drawn:
                    self._draw()
                elif self.told and not is_terminal(self.stream):
                    lines = [line for training in list(self.training.values()) if (line := described(training))]
                    self.stream.writelines(f"{line}\n" for line in lines)
                    self.stream.flush()

    def _draw(self) -> None:
        """Draw the view, while nothing but jobs with logs of their own is under way: local rules may print."""
        if self.view and self._quiet():
            size = shutil.get_terminal_size()
            try:
                lines = self.view.lines(list(self.jobs.values()), self.done, size.columns - 1, size.lines - 1)
            except OSError:  # of a network's disk, for a moment: it is looked at again
                return
            except Exception:  # without the view, Snakemake's own lines are printed again
                self.view = None
                traceback.print_exc(file=self.stream)
                return
            self.region.draw(lines, wanted=self._quiet)

    def _quiet(self) -> bool:
        """Whether there are jobs, and none of them prints by itself."""
        jobs = list(self.jobs.values())
        return bool(jobs) and not any(job.local for job in jobs)


def described(training: Training, results: Path = RESULTS) -> str:
    """Epoch, speed and expected end of a job; '' while nothing is known."""
    try:
        run = Run.read(results / "runs" / training.run / "run.json")
        known = pace.newest(results / "checkpoints" / training.run)
    except (OSError, UserError):
        return ""
    if run.strategy.script:  # nobody knows its epochs, nor its end
        told = runs.silent(Places(results, training.run)) or (f"step {known.step:,}" if known else "")
        return f"{told}: {training.words}" if told else ""
    if known is None:
        return ""
    epoch = f"epoch {known.step / run.length.steps_per_epoch:.1f} of {run.length.epochs:g}"
    speed = f"{known.steps_per_second * run.batch.global_batch_size:,.0f} samples/s"
    end = clock(known.reached + known.seconds_to(training.last))
    return f"{epoch}, {speed}, ends about {end}: {training.words}"
