"""One process of a segment: resume, train to the planned step or to an interruption, save, record.

Started on every rank by the launcher: `python -m relay.launch.worker training.trainer WORK --help`.
"""

import time
from argparse import Namespace
from collections.abc import Generator, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import torch

from relay import strategies
from relay.base import options
from relay.base.errors import UserError
from relay.base.lifeline import launcher
from relay.base.lock import exclusive
from relay.chain import slurm
from relay.chain.peers import Agreement
from relay.chain.signals import Interruption
from relay.datasets.manifest import digest
from relay.process import machine
from relay.process.generators import seed_generators
from relay.process.joined import joined
from relay.process.ranks import Ranks
from relay.run_folder import run_chain
from relay.run_folder.attempts import FIRST_EVALUATION
from relay.spec.run import Training
from relay.strategies._captured import Captured
from relay.task.data import feeder, verify_on_further_nodes
from relay.task.split import Chosen, chosen
from relay.training.checkpoint import Trained
from relay.training.evaluation import Evaluation
from relay.training.observer import Observer, monitored
from relay.training.recorder import Recorder
from relay.training.spot_keeper import Keeper, NotedTask
from relay.training.timing import Stopwatch

FLUSH_SECONDS = 10.0  # records go to the (shared) disk at the first agreement after so long


class Trainer:
    """A run's strategy, its data, and where its checkpoints and records go: what `train` steps through.

    It trains the steps after `first`, up to `last`.
    """

    def __init__(self, run: Training, ranks: Ranks, given: Namespace, measured: Mapping[str, Any]) -> None:
        self.run, self.ranks, self.work, self.first, self.last = run, ranks, given.work, given.first, given.last
        self.interruption = Interruption(launcher=launcher())
        self.interruption.watch(last_resort=False)
        # Slurm's end of the job, which `relay.slurm.allocation` sets where Slurm does not. One rank warns of nonsense.
        self.interruption.end_time = ranks.of_first(slurm.in_environment)
        self.task = task = NotedTask.of(run, given.dataset)
        strategy = strategies.load(run.strategy.name)
        self.strategy = strategy(task, ranks, run.batch.global_batch_size, run.strategy.options, measured)
        # Each replica its own stream for dropout, the same on all of its ranks: what they hold of one layer together
        # must be dropped alike. The model's initial parameters come from the seed alone.
        seed_generators(run.seed * 1_000_003 + self.strategy.replica.index, ranks.devices)
        verify_on_further_nodes(given.dataset, run.shape.nodes, ranks)
        train, test = task.split("train"), task.split("test")
        self.count, self.dataset = len(train), digest(given.dataset)
        reads = partial(feeder, run.feeding.loader, device=ranks.device, workers=run.feeding.data_workers)
        self.feeder = reads(split=train)
        self.captured = Captured(self.strategy, self.feeder.ready)
        self.evaluation = Evaluation(reads(split=test), self.strategy, run.batch.global_batch_size)
        self.evaluating = FIRST_EVALUATION if run.computation.compile else "evaluation"
        self.trained = Trained(self.strategy, ranks, given.work)
        self.saver = self.trained.saver()
        self.spots = Keeper(run, ranks, self.trained, self.saver)
        self.recorder = Recorder(given.work, given.attempt, ranks, self.strategy.replica, self._why_not_finite)
        self.observer = Observer(run.length, given.work, given.attempt, ranks, self.strategy)

    def train(self) -> None:
        """Go on from the newest checkpoint within [first, last] to step `last`, or to an interruption. Collective.

        Raises UserError where the checkpoint to go on from is gone, and Diverged where a loss is not finite.
        """
        step, stopped = self._resume(), None
        self._begin(step)
        with closing(self._losses(step)) as losses:
            for loss in losses:  # fetches the next batch, and trains one step with it
                step += 1
                self._note(step, loss)
                if step % self.run.length.evaluate_every_steps == 0 or step == self.run.length.total_steps:
                    self._evaluate(step)
                if self.observer.due(step):
                    with self.stopwatch.paused("observing"):
                        self.saver.finish()  # nothing is written beside them
                        self.observer.turn(step)
                if self.spots.due(step):
                    with self.stopwatch.paused("saving"), self.observer.beside():
                        self.spots.save(step)
                if step == self.last or self.agreement.due(step):
                    stopped = self._agree(step)
                if step == self.last or stopped:
                    break
                self.strategy.set_learning_rate(self.task.learning_rate(step))
                self.spots.before(step + 1)
        if step < self.last and not stopped:
            problem = f"the strategy's `train_steps` ended after step {step}; there are batches up to {self.last}"
            raise RuntimeError(problem)
        self._end(step, stopped)

    # Before the first step

    def _resume(self) -> int:
        """Load the newest sound checkpoint of the segment, and return the step to go on from. Collective."""
        step = self.trained.go_on(self.saver, self.first, self.last)
        if step and (earlier := run_chain.dataset(self.work)) not in (None, self.dataset):
            raise UserError(
                f"run {self.run.id}: its dataset was made anew with other content since its last job (then {earlier}, "
                f"now {self.dataset}); put the older one back, or delete results/runs/{self.run.id} to train it from "
                "the start"
            )
        if step and self.ranks.rank == 0:
            print(f"goes on from the checkpoint of step {step}", flush=True)
        return step

    def _begin(self, step: int) -> None:
        """Begin whatever goes along with the steps after this one. Collective."""
        length = self.run.length
        self.recorder.begin(step, machine.facts(self.ranks.device) | {"dataset": self.dataset})
        self.agreement = Agreement(
            self.ranks, self.interruption, step, length.checkpoint_minutes * 60, length.checkpoint_every_steps
        )
        self.flushed_at = time.monotonic()
        self.stopwatch = Stopwatch(self.ranks.devices, step, length.warmup_steps, self.feeder.ahead)
        self.strategy.set_learning_rate(self.task.learning_rate(step))
        with self.stopwatch.paused("saving"):
            self.spots.begin(step, self.last)
        self.observer.begin(step, self.last)

    def _losses(self, first: int) -> Generator[torch.Tensor, None, None]:
        """Train from step `first` on with this replica's slice of every global batch; the losses."""
        run, replica = self.run, self.strategy.replica
        raws = self.feeder.raws(
            chosen(self.count, run.batch.global_batch_size, run.seed, step, replica.index, replica.count)
            for step in range(first, self.last)
        )
        if not self.captured.why:
            return self.captured.train_steps(self.observer.fed(raws, self.stopwatch))
        return self.strategy.train_steps(self.observer.fed(map(self.feeder.ready, raws), self.stopwatch))

    # After a step

    def _note(self, step: int, loss: torch.Tensor) -> None:
        """The step is done."""
        self.observer.stepped()
        self.spots.after(step)
        self.recorder.loss(loss)
        self.stopwatch.tick()

    def _evaluate(self, step: int) -> None:
        """Record the loss and the task's metrics on the test set. Collective."""
        with self.stopwatch.paused(self.evaluating), self.observer.beside():
            loss, metrics = self.evaluation.measure()
            self.recorder.evaluation(step, loss, metrics)
            if self.ranks.rank == 0:
                figures = "".join(f", {name} {value:.2%}" if name == "accuracy" else f", {name} {value:.4g}"
                               for name, value in metrics.items())  # fmt: skip
                print(f"step {step}/{self.run.length.total_steps}: test loss {loss:.4f}{figures}", flush=True)
        self.evaluating = "evaluation"

    def _agree(self, step: int) -> str | None:
        """Save, stop and write as the ranks agree; why the job stops here. Collective."""
        write = self.ranks.rank == 0 and time.monotonic() - self.flushed_at >= FLUSH_SECONDS
        decision = self.agreement.decide(step, self.saver, write=write)
        if step == self.last or decision.stopped:
            self._save(step, wait=True)
        elif decision.save:
            self._save(step)
        elif decision.write:
            self._flush()
        self.agreement.done(step, saved=decision.save)
        return decision.stopped if step < self.last else None

    def _end(self, step: int, stopped: str | None) -> None:
        """Record the end of this job's steps, and why it has `stopped` before the last one. Collective."""
        with self.stopwatch.paused("saving"):
            self.spots.end(step)
        machine.check_threads(f"run {self.run.id}", self.run.shape.threads)
        peak = machine.peak_memory_bytes(self.ranks.devices)
        graph = self.captured.record if self.task.captured else None
        self.recorder.end(step, stopped, peak, self.strategy.counted(), self.stopwatch.take_paused(), graph)

    # Files

    def _save(self, step: int, *, wait: bool = False) -> None:
        """Begin a checkpoint of this step, outside the measured time; `wait` for it, and for the one before."""
        self._flush()  # first: whoever goes on from the checkpoint does not record these steps again
        with self.stopwatch.paused("saving"):
            if wait:
                self.saver.save_last(step)
            else:
                self.saver.begin(step)

    def _flush(self) -> None:
        """Write what was recorded since the last time, outside the measured time. Collective."""
        with self.stopwatch.paused("saving"):
            self.recorder.flush(self.stopwatch.take(), self.stopwatch.take_paused())
        self.flushed_at = time.monotonic()

    def _why_not_finite(self, name: str, step: int) -> str:
        """What of the samples is not finite of which this loss was computed; '' where all is: the training diverged."""
        size = self.run.batch.global_batch_size
        if name == "test":
            split = self.evaluation.feeder.split
            return split.first_not_finite(map(Chosen, torch.arange(len(split)).split(size)), self.ranks.device)
        samples = chosen(self.count, size, self.run.seed, step - 1)
        return self.feeder.split.first_not_finite([samples], self.ranks.device)


def main(arguments: list[str]) -> None:
    """Parse the command line and train one segment."""
    parser = options.parser(__doc__, "spec", "dataset", "work", "first", "last", prog="training.trainer")
    parser.add_argument("--attempt", type=int, required=True, help="number of this attempt in the whole chain")
    given = parser.parse_args(arguments)

    with joined(given.spec, strategies.service) as (run, ranks):
        # Nobody held it when the job began; the driver's looks at it last an instant.
        held = exclusive(given.work, seconds=5.0) if ranks.rank == 0 else None
        ranks.barrier()
        measured = run_chain.measured(given.work)
        with monitored(run, ranks, given.work, given.attempt):
            trainer = Trainer(run, ranks, given, measured)
            ranks.barrier()  # all have read it
            if ranks.rank == 0:
                run_chain.note_measured(given.work, trainer.strategy.measured)
            trainer.train()
        if held:
            held.close()
