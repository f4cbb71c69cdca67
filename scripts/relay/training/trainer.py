"""One process of a segment: resume, train to the planned step or to an interruption, save, record.

Started on every rank by the launcher: `python -m relay.launch.worker training.trainer WORK --help`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from relay import strategies
from relay.base.errors import UserError
from relay.base.lock import exclusive
from relay.process import machine
from relay.process.interruption import Interruption
from relay.process.joined import joined
from relay.process.ranks import Ranks
from relay.run_folder.measured import read_measured, write_measured
from relay.spec.run import Training
from relay.task.data import Batch, Split, batch_indices, feeder
from relay.task.task import Task
from relay.training.checkpoint import Checkpoints, seed_generators
from relay.training.evaluation import Evaluation
from relay.training.records import Recorder
from relay.training.timing import Stopwatch

AGREE_SECONDS = 1.0  # how often the ranks agree on stopping and saving
FIRST_SAVE_SECONDS = 60.0  # before this nothing that could be lost would be worth a save
FLUSH_SECONDS = 10.0  # how often records go to the (shared) disk


class Trainer:
    """The loop around a strategy's steps: everything that happens between them."""

    def __init__(
        self, run: Training, ranks: Ranks, dataset: Path, work: Path, attempt: int, measured: Mapping[str, Any]
    ) -> None:
        self.run, self.ranks = run, ranks
        self.interruption = Interruption.watch()
        self.task = task = Task.of(run)
        strategy = strategies.load(run.strategy.name)
        self.strategy = strategy(task, ranks, run.batch.global_batch_size, run.strategy.options, measured)
        # Each replica its own stream for dropout, the same on all of its ranks: what they hold of one layer together
        # must be dropped alike. The model's initial parameters come from the seed alone.
        seed_generators(run.seed * 1_000_003 + self.strategy.replica.index)
        train, test = Split(dataset, "train", run.task), Split(dataset, "test", run.task)
        self.count = len(train)
        self.feeder = feeder(run.feeding.loader, train, ranks.device, task.dtype, run.feeding.data_workers)
        self.evaluation = Evaluation(test, task, self.strategy, run.batch.global_batch_size)
        self.checkpoints = Checkpoints(work, ranks)
        self.recorder = Recorder(work, attempt, ranks, self.strategy.replica)

    def train(self, first: int, last: int) -> None:
        """Go on from the newest checkpoint within [first, last] to step `last`, or to an interruption.

        Raises UserError where the checkpoint to go on from is gone.
        """
        resumed = self.checkpoints.resume(self.strategy, first, last)
        if resumed is None and first > 0:
            raise UserError(
                f"run {self.run.id}: no sound checkpoint for steps {first} to {last}; "
                f"delete results/runs/{self.run.id} to train it from the start"
            )
        self.step, self.last = resumed or 0, last
        self.saved_at, self.saved_step = time.monotonic(), self.step  # when, and of which step, a save was last begun
        self.flushed_at = self.agreed_at = time.monotonic()
        self.next_agreement = self.agreed_step = self.began = self.step
        self.stopped: str | None = None
        self.recorder.begin(self.step, machine.facts(self.ranks.device))
        if self.step < last:
            self.strategy.set_learning_rate(self.task.learning_rate(self.step))
            self.stopwatch = Stopwatch(self.ranks.device, self.step)
            self.strategy.train(self.stopwatch.waiting(self._batches()), self._after_step)
        self.recorder.end(self.step, self.stopped, machine.peak_memory_bytes(self.ranks.devices))

    def _batches(self) -> Iterator[Batch]:
        """This replica's slice of every global batch still to come."""
        run, replica = self.run, self.strategy.replica
        return self.feeder.batches(
            batch_indices(self.count, run.batch.global_batch_size, run.seed, step).chunk(replica.count)[replica.index]
            for step in range(self.step, self.last)
        )

    def _after_step(self, loss: torch.Tensor) -> bool:
        """What happens between two steps; True ends the training here."""
        self.step += 1
        self.recorder.loss(loss)
        self.stopwatch.tick()
        if self.step % self.run.length.evaluate_every_steps == 0 or self.step == self.run.length.total_steps:
            self._evaluate()
        done = self.step == self.last
        if done or self.step >= self.next_agreement:
            self._agree(done)
        self.strategy.set_learning_rate(self.task.learning_rate(self.step))
        return done or self.stopped is not None

    def _evaluate(self) -> None:
        self.stopwatch.pause()
        found = self.evaluation.measure()
        self.recorder.evaluation(self.step, *found)
        if self.ranks.rank == 0:
            accuracy = "" if found[1] is None else f", accuracy {found[1]:.2%}"
            print(f"step {self.step}/{self.run.length.total_steps}: test loss {found[0]:.4f}{accuracy}", flush=True)
        self.stopwatch.resume()

    def _agree(self, done: bool) -> None:
        """All ranks learn whether to stop, to save and to flush, when to ask next, and how the save in the
        background goes. Collective.

        Rank 0's clock decides on saving, flushing and asking; any rank's reason stops all, and so does a save that
        failed on any.
        """
        now, reason = time.monotonic(), self.interruption.reason
        wanted = [self.checkpoints.progress, float(reason is not None), 0.0, 0.0, 0.0]
        if self.ranks.rank == 0:
            per_step = (now - self.agreed_at) / max(1, self.step - self.agreed_step)
            wanted[2:] = [
                float(now - self.saved_at >= self._save_every_seconds()),
                float(now - self.flushed_at >= FLUSH_SECONDS),
                max(1.0, AGREE_SECONDS // max(per_step, 1e-4)),
            ]
        progress, stop, save, flush, interval = self.ranks.largest(wanted)
        free = self.checkpoints.agree(progress)
        # The first steps of a process, with all that is built and compiled in them, do not come again.
        longest = now - self.agreed_at if self.agreed_step > self.began else 0.0
        self.interruption.leave_room(self.checkpoints.longest_save_seconds, longest)
        if stop and not done:
            self.stopped = next(given for given in self.ranks.gather(reason) if given)
        if done or stop:
            self._save(wait=True)
        elif save and free:
            self._save()
        elif flush:
            self.stopwatch.pause()
            self._flush()
            self.stopwatch.resume()
        self.agreed_at, self.agreed_step = time.monotonic(), self.step
        self.next_agreement = self.step + int(interval)

    def _save_every_seconds(self) -> float:
        """Soon for the first time where the job will end: what a save takes has to be known by then."""
        seconds = self.run.length.checkpoint_minutes * 60
        unknown = self.interruption.deadline is not None and self.checkpoints.longest_save_seconds == 0
        return min(seconds, FIRST_SAVE_SECONDS) if unknown else seconds

    def _flush(self) -> None:
        """Write what was recorded since the last time. Collective."""
        self.recorder.flush(self.stopwatch.take())
        self.flushed_at = time.monotonic()

    def _save(self, *, wait: bool = False) -> None:
        """Begin a checkpoint of this step, outside the measured time; `wait` for it, and for the one before."""
        self.stopwatch.pause()
        self._flush()  # before the checkpoint: whoever goes on from it does not record these steps again
        if wait:
            self.checkpoints.finish()
        if self.step > self.saved_step:
            self.checkpoints.begin(self.strategy, self.step)
            self.saved_at, self.saved_step = time.monotonic(), self.step
        if wait:
            self.checkpoints.finish()
        self.stopwatch.resume()


def main(arguments: list[str]) -> None:
    """Parse the command line and train one segment."""
    parser = argparse.ArgumentParser(prog="training.trainer", description=__doc__.splitlines()[0])
    parser.add_argument("--spec", type=Path, required=True, help="the run's run.json")
    parser.add_argument("--dataset", type=Path, required=True, help="the prepared dataset's directory")
    parser.add_argument("--work", type=Path, required=True, help="the run's rolling checkpoints and records")
    parser.add_argument("--first", type=int, required=True, help="the step at which the segment starts")
    parser.add_argument("--last", type=int, required=True, help="the step at which the segment ends")
    parser.add_argument("--attempt", type=int, required=True, help="number of this attempt in the whole chain")
    given = parser.parse_args(arguments)

    with joined(given.spec, strategies.service) as (run, ranks):
        held = exclusive(given.work) if ranks.rank == 0 else None
        ranks.barrier()
        trainer = Trainer(run, ranks, given.dataset, given.work, given.attempt, read_measured(given.spec.parent))
        ranks.barrier()  # all have read it
        if ranks.rank == 0:
            write_measured(given.spec.parent, trainer.strategy.measured)
        trainer.train(given.first, given.last)
        if held:
            held.close()
