"""One process of a segment: resume, train to the planned step or to an interruption, save, record.

Started on every rank by the launcher: `python -m relay.launch.worker training.trainer WORK --help`.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch

from relay import strategies
from relay.base import options
from relay.base.errors import UserError
from relay.base.lifeline import launcher
from relay.base.lock import exclusive
from relay.chain import slurm
from relay.chain.signals import Interruption
from relay.datasets.manifest import digest
from relay.process import machine
from relay.process.generators import seed_generators
from relay.process.joined import joined
from relay.process.ranks import Ranks
from relay.run_folder import run_chain
from relay.run_folder.attempts import DEADLINE
from relay.run_folder.run_chain import read_measured, write_measured
from relay.spec.run import Training
from relay.strategies._captured import Captured
from relay.task.data import feeder, verify_on_further_nodes
from relay.task.split import Chosen, chosen
from relay.training.checkpoint import Checkpoints, no_sound_checkpoint
from relay.training.evaluation import Evaluation
from relay.training.observer import Observer, monitored
from relay.training.ranks_agree import Agreement
from relay.training.recorder import Recorder
from relay.training.spot_keeper import Keeper, NotedTask
from relay.training.timing import Stopwatch


class Trainer:
    """A run's strategy, its data, and where its checkpoints and records go: what `train` steps through."""

    def __init__(
        self, run: Training, ranks: Ranks, dataset: Path, work: Path, attempt: int, measured: Mapping[str, Any]
    ) -> None:
        self.run, self.ranks = run, ranks
        self.interruption = Interruption(nearly_over=DEADLINE, launcher=launcher())
        self.interruption.watch(last_resort=False)
        # Slurm's end of the job, which `relay.slurm.allocation` sets where Slurm does not. One rank warns of nonsense.
        self.interruption.end_time = ranks.of_first(slurm.in_environment)
        self.task = task = NotedTask.of(run, dataset)
        strategy = strategies.load(run.strategy.name)
        self.strategy = strategy(task, ranks, run.batch.global_batch_size, run.strategy.options, measured)
        # Each replica its own stream for dropout, the same on all of its ranks: what they hold of one layer together
        # must be dropped alike. The model's initial parameters come from the seed alone.
        seed_generators(run.seed * 1_000_003 + self.strategy.replica.index, ranks.devices)
        verify_on_further_nodes(dataset, run.shape.nodes, ranks)
        train, test = task.split("train"), task.split("test")
        self.count, self.dataset = len(train), digest(dataset)
        reads = partial(feeder, run.feeding.loader, device=ranks.device, workers=run.feeding.data_workers)
        self.feeder = reads(split=train)
        self.captured = Captured(self.strategy, self.feeder.ready)
        self.evaluation = Evaluation(reads(split=test), self.strategy, run.batch.global_batch_size)
        self.checkpoints = Checkpoints(work, ranks)
        self.recorder = Recorder(work, attempt, ranks, self.strategy.replica, self._why_not_finite)
        self.observer = Observer(run.length, work, attempt, ranks, self.strategy)
        self.work = work
        self.spots = Keeper(run, work, ranks, self.strategy, self.checkpoints)

    def train(self, first: int, last: int) -> None:
        """Go on from the newest checkpoint within [first, last] to step `last`, or to an interruption. Collective.

        Raises UserError where the checkpoint to go on from is gone, and Diverged where a loss is not finite.
        """
        strategy, task, recorder, length = self.strategy, self.task, self.recorder, self.run.length
        step, stopped = self._resume(first, last), None
        if step and self.ranks.rank == 0:
            print(f"goes on from the checkpoint of step {step}", flush=True)
        recorder.begin(step, machine.facts(self.ranks.device) | {"dataset": self.dataset})
        agreement = Agreement(length, self.ranks, self.interruption, self.checkpoints, step)
        stopwatch = Stopwatch(self.ranks.devices, step, length.warmup_steps, self.feeder.ahead)
        strategy.set_learning_rate(task.learning_rate(step))
        with stopwatch.paused("saving"):
            self.spots.begin(step, last)
        self.observer.begin(step, last)
        with closing(self._steps(step, last, stopwatch)) as losses:
            for loss in losses:  # fetches the next batch, and trains one step with it
                step += 1
                self.observer.stepped()
                self.spots.after(step)
                recorder.loss(loss)
                stopwatch.tick()
                if step % length.evaluate_every_steps == 0 or step == length.total_steps:
                    with stopwatch.paused("evaluation"), self.observer.beside():
                        self._evaluate(step)
                if self.observer.due(step):
                    with stopwatch.paused("observing"):
                        self.checkpoints.finish()  # nothing is written beside the steps that are observed
                        self.observer.turn(step)
                if self.spots.due(step):
                    with stopwatch.paused("saving"), self.observer.beside():
                        self.spots.save(step)
                if step == last or agreement.due(step):
                    decision = agreement.decide(step)
                    stopped = decision.stopped if step < last else None
                    if step == last or stopped:
                        self._save(step, stopwatch, agreement, wait=True)
                    elif decision.save:
                        self._save(step, stopwatch, agreement)
                    elif decision.write:
                        self._flush(stopwatch, agreement)
                    agreement.done(step, saved=decision.save)
                if step == last or stopped:
                    break
                strategy.set_learning_rate(task.learning_rate(step))
                self.spots.before(step + 1)
        if step < last and not stopped:
            raise RuntimeError(f"the strategy's `train_steps` ended after step {step}; there are batches up to {last}")
        with stopwatch.paused("saving"):
            self.spots.end(step)
        machine.check_threads(f"run {self.run.id}", self.run.shape.threads)
        peak = machine.peak_memory_bytes(self.ranks.devices)
        counted, paused = strategy.counted(), stopwatch.take_paused()
        recorder.end(step, stopped, peak, counted, paused, self.captured.record if task.captured else None)

    def _resume(self, first: int, last: int) -> int:
        """Load the newest sound checkpoint of the segment, and return the step to go on from. Collective."""
        resumed = self.checkpoints.resume(self.strategy, first, last)
        if resumed is None and first > 0:
            raise UserError(no_sound_checkpoint(self.run.id, first, last))
        if resumed and (earlier := run_chain.dataset(self.work)) not in (None, self.dataset):
            raise UserError(
                f"run {self.run.id}: its dataset was made anew with other content since its last job (then {earlier}, "
                f"now {self.dataset}); put the older one back, or delete results/runs/{self.run.id} to train it from "
                "the start"
            )
        return resumed or 0

    def _steps(self, first: int, last: int, stopwatch: Stopwatch) -> Generator[torch.Tensor, None, None]:
        """Train from step `first` to `last` with this replica's slice of every global batch; the losses."""
        run, replica = self.run, self.strategy.replica
        raws = self.feeder.raws(
            chosen(self.count, run.batch.global_batch_size, run.seed, step, replica.index, replica.count)
            for step in range(first, last)
        )
        if not self.captured.why:
            return self.captured.train_steps(self.observer.fed(raws, stopwatch))
        return self.strategy.train_steps(self.observer.fed(map(self.feeder.ready, raws), stopwatch))

    def _why_not_finite(self, name: str, step: int) -> str:
        """What of the samples is not finite of which this loss was computed; '' where all is: the training diverged."""
        size = self.run.batch.global_batch_size
        if name == "test":
            split = self.evaluation.feeder.split
            return split.first_not_finite(map(Chosen, torch.arange(len(split)).split(size)), self.ranks.device)
        samples = chosen(self.count, size, self.run.seed, step - 1)
        return self.feeder.split.first_not_finite([samples], self.ranks.device)

    def _evaluate(self, step: int) -> None:
        """Record the loss and the task's metrics on the test set. Collective."""
        loss, metrics = self.evaluation.measure()
        self.recorder.evaluation(step, loss, metrics)
        if self.ranks.rank == 0:
            figures = "".join(f", {name} {value:.2%}" if name == "accuracy" else f", {name} {value:.4g}"
                           for name, value in metrics.items())  # fmt: skip
            print(f"step {step}/{self.run.length.total_steps}: test loss {loss:.4f}{figures}", flush=True)

    def _flush(self, stopwatch: Stopwatch, agreement: Agreement) -> None:
        """Write what was recorded since the last time, outside the measured time. Collective."""
        with stopwatch.paused("saving"):
            self.recorder.flush(stopwatch.take(), stopwatch.take_paused())
        agreement.flushed_at = time.monotonic()

    def _save(self, step: int, stopwatch: Stopwatch, agreement: Agreement, *, wait: bool = False) -> None:
        """Begin a checkpoint of this step, outside the measured time; `wait` for it, and for the one before."""
        # The records come first: whoever goes on from the checkpoint does not record these steps again.
        self._flush(stopwatch, agreement)
        with stopwatch.paused("saving"):
            if wait:
                self.checkpoints.finish()
            self.checkpoints.begin(self.strategy, step)
            if wait:
                self.checkpoints.finish()


def main(arguments: list[str]) -> None:
    """Parse the command line and train one segment."""
    parser = options.parser(__doc__, "spec", "dataset", "work", "first", "last", prog="training.trainer")
    parser.add_argument("--attempt", type=int, required=True, help="number of this attempt in the whole chain")
    given = parser.parse_args(arguments)

    with joined(given.spec, strategies.service) as (run, ranks):
        # Nobody held it when the job began; the driver's looks at it last an instant.
        held = exclusive(given.work, seconds=5.0) if ranks.rank == 0 else None
        ranks.barrier()
        measured = read_measured(given.spec.parent, given.work)
        with monitored(run, ranks, given.work, given.attempt):
            trainer = Trainer(run, ranks, given.dataset, given.work, given.attempt, measured)
            ranks.barrier()  # all have read it
            if ranks.rank == 0:
                write_measured(trainer.strategy.measured, given.spec.parent, given.work)
            trainer.train(given.first, given.last)
        if held:
            held.close()
