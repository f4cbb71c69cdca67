"""What strategies share whose training is done by Lightning's Trainer.

Lightning owns its loop. The run owns the batches, the learning rate, evaluations and checkpoints. So the Trainer runs
in a thread that takes turns with the run's loop: it trains a step, then waits until the run asks for the next one.
Lightning sets no signal handlers in a thread, so that the run's own stay.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from torch import nn

from relay.process.devices import is_gpu
from relay.process.machine import compute_in
from relay.strategies._lightning_library import Callback, LightningModule, LightningsStrategy, ModelCheckpoint, Trainer
from relay.strategies.base import Batch, Strategy
from relay.task.modes import outside

# Lightning asks for a length, else it fetches a batch ahead of the step that is due. The run ends the training.
NO_END = 10**12
# Of the user's shell: they would change the Trainer's arguments, and start the random generators again in each fit.
OVERRIDING = ("PL_TRAINER_", "PL_GLOBAL_SEED")
CHECKPOINT = "lightning"  # the name of the file that Lightning's ModelCheckpoint writes, without its suffix


class LightningStrategy(Strategy):
    """A strategy whose steps are those of `Trainer.fit`. A subclass says which of Lightning's strategies trains.

    With `model_checkpoint` Lightning's ModelCheckpoint writes the model's weights into each of the run's checkpoints,
    beside what the run itself goes on from. It is for users of Lightning; nothing here reads it.
    """

    lightning_module: TrainedModule
    model_checkpoint = False
    trainer: Trainer | None = None

    def build_whole(self) -> None:
        super().build_whole()
        self.module = self.lightning_module = TrainedModule(self, self.model, self.optimizer)

    def lightning_strategy(self) -> LightningsStrategy:
        """Lightning's strategy for a new Trainer, with an environment and a precision given explicitly."""
        raise NotImplementedError(f"{type(self).__name__} has no lightning_strategy()")  # abstract

    def train_steps(self, batches: Iterator[Batch]) -> Generator[torch.Tensor, None, None]:
        """Train a step with each batch, and hand over its loss before the next one."""
        turns, threads = Turns(), torch.get_num_threads()

        def fit() -> None:
            compute_in(threads)
            if is_gpu(self.ranks.device):
                torch.cuda.set_device(self.ranks.device)  # each thread has its own
            self.trainer = trainer = self.new_trainer(turns)
            try:
                trainer.fit(self.lightning_module, train_dataloaders=Batches(batches))
            finally:
                self.trainer = None

        with ThreadPoolExecutor(1, "lightning") as pool:  # whose end waits for the thread's
            fitted = pool.submit(fit)
            fitted.add_done_callback(lambda _: turns.losses.put(None))
            try:
                while (loss := turns.losses.get()) is not None:
                    yield loss
                    turns.stop.put(False)
                fitted.result()  # raises what the Trainer has raised
            finally:  # also where the caller ends early
                turns.stop.put(True)

    def new_trainer(self, *callbacks: Callback) -> Trainer:
        """A Trainer that trains until it is told to stop, and does nothing besides."""
        quiet()
        mine = [AtTheRunsMoments()] if self.model_checkpoint else []
        return Trainer(
            strategy=self.lightning_strategy(),
            accelerator=self.ranks.device.type,
            max_epochs=1,
            min_epochs=0,
            callbacks=[*callbacks, *mine],
            enable_checkpointing=self.model_checkpoint,
            use_distributed_sampler=False,  # each rank's batches are its slices already
            accumulate_grad_batches=1,
            gradient_clip_val=self.task.own.clip_grad_norm,
            deterministic=None,
            benchmark=None,
            num_sanity_val_steps=0,
            limit_val_batches=0,
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,
        )

    def save(self, directory: Path) -> Future[Any]:
        writing = super().save(directory)
        for callback in self.trainer.checkpoint_callbacks if self.trainer else ():
            if isinstance(callback, AtTheRunsMoments):
                callback.save(self.trainer, directory)
        return writing


class Turns(Callback):
    """Hands each step's loss to the run, and waits until the run asks for the next step.

    `losses` has None at the Trainer's end. `stop` has whether the Trainer has to end.
    """

    def __init__(self) -> None:
        self.losses: SimpleQueue[torch.Tensor | None] = SimpleQueue()
        self.stop: SimpleQueue[bool] = SimpleQueue()

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, outputs: Any, *_: Any) -> None:
        """Called by Lightning after the optimiser's step."""
        self.losses.put(outputs["loss"])
        trainer.should_stop = self.stop.get()


class TrainedModule(LightningModule):
    """The task's model, loss and optimiser, as Lightning takes them."""

    def __init__(self, strategy: Strategy, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.network, self.run_optimizer = network, optimizer
        self.outputs, self.loss = strategy.task.outputs, strategy.loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimiser with the run's state. The run sets its learning rate between two steps."""
        return self.run_optimizer

    def configure_gradient_clipping(self, *given: Any, **named: Any) -> None:
        """Lightning's own, without a smooth twin's functions, which are for the model."""
        with outside():
            super().configure_gradient_clipping(*given, **named)

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """The model's outputs."""
        return self.network(*arguments, **keywords)

    def training_step(self, batch: Batch) -> torch.Tensor:
        """The mean loss over the slice."""
        # Not `self(…)`: this runs within `forward` of what Lightning's strategy has wrapped around the module.
        return self.loss(self.outputs(self.network, batch), batch)


class Batches:
    """The run's batches as an iterable with a length."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Batch]:
        return self.batches

    def __len__(self) -> int:
        return NO_END


class AtTheRunsMoments(ModelCheckpoint):
    """Lightning's ModelCheckpoint, into the run's own checkpoints when the run saves."""

    def __init__(self) -> None:
        super().__init__(filename=CHECKPOINT, save_top_k=-1, save_weights_only=True, every_n_train_steps=1)

    def on_train_batch_end(self, *_: Any) -> None:
        """Not after each batch."""

    def save(self, trainer: Trainer, directory: Path) -> None:
        """Write the weights into this directory. Collective."""
        self.dirpath = str(directory)
        super().on_train_batch_end(trainer, trainer.lightning_module, None, None, 0)


def quiet() -> None:
    """No tips and notes in the jobs' logs, and none of the shell's variables that change a Trainer."""
    for name in [name for name in os.environ if name.startswith(OVERRIDING)]:
        del os.environ[name]
    for name in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module=r"(pytorch_)?lightning(_fabric)?\.")
