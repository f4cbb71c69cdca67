"""PyTorch Lightning's Trainer as a chain of short jobs:

    chain = ChainCallback()
    trainer = Trainer(…, callbacks=[chain])
    trainer.fit(model, loader, ckpt_path=chain.newest(trainer))

A checkpoint is the Trainer's own, `trainer.ckpt`, and of each rank its random generators, its place in the data and the
metrics that schedulers and callbacks watch. It is saved before a batch is fetched: all that belongs to the step before
has been done then, such as the module's hooks, validation and schedulers. An interrupted epoch goes on from there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning.callbacks import Checkpoint
else:
    try:
        from lightning.pytorch.callbacks import Checkpoint
    except ModuleNotFoundError:
        from pytorch_lightning.callbacks import Checkpoint

from .generators import restore
from .loader import Place, batches, heard, own_generators, prepare
from .peers import Agreement, Peers, check_intervals
from .saving import Parts, Saver
from .sealed import Folder, newest_of, step_of
from .signals import Interruption
from .slurm import end_time
from .supervisor import follow_torchrun
from .telling import ChainError, reporter, stopped, tell, tell_in_one_line

follow_torchrun()

CHECKPOINT = "trainer.ckpt"


class Loader:
    """A loader of the Trainer that counts its batches, and begins where an earlier job stopped.

    An epoch's order is drawn when its first batch is fetched, and not before: what is drawn then is known. With that
    batch, `generators`, the process's, are restored. `before` is called before each batch is fetched. All else is as
    the loader has it. `place` and `own`, the states of its own generators, are those of an earlier job.
    """

    def __init__(self, loader: Any, trainer: Any, place: Place | None, own: list[torch.Tensor]) -> None:
        self.loader, self._trainer = loader, trainer
        self._place, self._goes_on, self._own = place or Place(), place is not None, own
        self.generators: dict[str, Any] | None = None
        self.before: Callable[[], None] = lambda: None

    def reached(self, ahead: int) -> dict[str, Any]:
        """The place, as plain values; `ahead` batches were fetched that are not trained yet."""
        return {**asdict(self._place), "batch": max(0, self._place.batch - ahead)}

    def __iter__(self) -> Iterator[Any]:
        self.before()
        if not self._goes_on:
            self._place = Place(epoch=self._trainer.fit_loop.epoch_progress.current.processed)
        self._goes_on = False
        self._restore()
        place = self._place
        keeps_place = hasattr(self.loader, "load_state_dict")  # the Trainer has it go on by itself
        left = iter(self.loader) if keeps_place else batches(self.loader, place)
        for batch in heard(left):
            place.batch += 1
            yield batch
            self.before()

    def _restore(self) -> None:
        """Whatever was drawn since the job began, the generators go on as they were when it was saved."""
        for each, state in zip(own_generators(self.loader), self._own, strict=False):
            each.set_state(state)
        if self.generators is not None:
            restore(self.generators)
        self._own, self.generators = [], None

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # before it is there, as when this is copied
            raise AttributeError(name)
        return getattr(self.loader, name)


class ChainCallback(Checkpoint):
    """Saves on the way, and stops the Trainer with status 75 when the job's time is nearly over or a signal comes.

    The arguments are as for `resume`; a step is a batch. As it is a `Checkpoint`, the Trainer adds no `ModelCheckpoint`
    by itself.
    """

    def __init__(
        self,
        folder: str | Path = "checkpoints",
        *,
        time_limit: float | str | None = None,
        save_minutes: float = 10.0,
        save_steps: int | None = None,
    ) -> None:
        tell_in_one_line()
        check_intervals(save_minutes, save_steps)
        self.folder = Folder(Path(folder))
        self.time_limit, self.save_minutes, self.save_steps = time_limit, save_minutes, save_steps
        self._script = Path(sys.argv[0]).name
        self._interruption = Interruption(saved=lambda: self._saver.saved, saving=lambda: self._saver.under_way)
        self._ranks: Peers | None = None
        self._lock: Any = None  # held as long as the process lives
        self._resumed: Path | None = None
        self._own: Mapping[str, Any] = {}  # as it was loaded
        self._loaders: list[Loader] = []
        self._asked = 0
        self._put_off = False

    # Before the training

    def newest(self, trainer: Any) -> str | None:
        """The newest sound checkpoint, for `fit(ckpt_path=…)`; None where there is none at all. Collective.

        Says what is passed over. Raises ChainError where none is sound, for one of another script or number of
        processes, and where another process trains in the folder. It starts the Trainer's processes, if it has any.
        """
        ranks = self._ranks = _joined(trainer)
        self._lock = ranks.by_first(self.folder.open)
        self._saver = Saver(self.folder, self, ranks)
        self._interruption.end_time = ranks.by_first(lambda: end_time(self.time_limit))
        # Rank 0 reads a large checkpoint for long. The Saver's group waits as long, and nothing is saved meanwhile.
        self._resumed = ranks.patient.of_first(
            lambda: newest_of(self._script, ranks.world_size, self.folder.places(), "give another folder")
        )
        # Now: the Trainer calls nobody where no step is left.
        tell("resumed", int(step_of(self._resumed)) if self._resumed else 0)
        return None if self._resumed is None else str(self._resumed / CHECKPOINT)

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Take the signals: the Trainer has just installed handlers of its own, which would end one rank alone."""
        self._interruption.watch()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch for signals and the time, and go to the place in the data."""
        ranks = self._ranks
        given = None if self._resumed is None else str(self._resumed / CHECKPOINT)
        if ranks is None or (str(trainer.ckpt_path) if trainer.ckpt_path else None) != given:
            raise ChainError("the Trainer begins elsewhere; write trainer.fit(…, ckpt_path=chain.newest(trainer))")
        self._interruption.watch()
        self._trainer = trainer
        if self._resumed is not None:
            self._saver.load(self._resumed)
        self._asked = _step(trainer)
        self._agreement = Agreement(ranks, self._interruption, self._asked, self.save_minutes * 60, self.save_steps)
        # The Trainer has made the first epoch's iterator already, which is not at the place.
        trainer.fit_loop._combined_loader.reset()
        self._use_loaders(trainer, self._own)
        iter(trainer.fit_loop._data_fetcher)
        # At the end of an interrupted epoch the Trainer would pass ReduceLROnPlateau over, because it saves no metrics.
        # Here they are kept.
        trainer.fit_loop._restarting = False
        trainer._logger_connector._callback_metrics.update(self._own.get("metrics", {}))

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Take the loaders again, where the Trainer has made new ones."""
        if not all(isinstance(each, Loader) for each in trainer.fit_loop._combined_loader.flattened):
            self._use_loaders(trainer, {})

    def _use_loaders(self, trainer: Any, own: Mapping[str, Any]) -> None:
        combined = trainer.fit_loop._combined_loader
        self._loaders = []
        here = len(combined.flattened)
        saved = own.get("places", ())[:here], own.get("own", ())[:here]
        for each, place, its_own in zip_longest(combined.flattened, *saved):
            prepare(each)
            self._loaders.append(Loader(each, trainer, place and Place(**place), its_own or []))
        # The first is asked first: when it is, the step before is over.
        self._loaders[0].generators, self._loaders[0].before = own.get("generators"), lambda: self._between(trainer)
        combined.flattened = self._loaders

    # Between two steps

    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        """Tell how far the training is."""
        if report := reporter():
            report.count(_step(trainer), None)

    def _between(self, trainer: Any) -> None:
        """Save, and stop, where the ranks agree on it. Raises Stopped."""
        step = _step(trainer)
        if step <= self._asked:  # a batch that is fetched ahead
            return
        self._asked = step
        if not _is_whole(trainer):
            return
        # The Trainer goes on in the middle of an epoch, where it has not just validated. Else at the next step; but not
        # never, where it validates after each.
        self._put_off = not self._put_off and _is_edge(trainer)
        if self._put_off:
            return
        if not self._agreement.due(step):
            return
        decision = self._agreement.reach(step, 0.0, self._saver.longest_save_seconds)
        if decision.save or decision.stopped:
            (self._saver.save_last if decision.stopped else self._saver.save)(step)
        self._agreement.done(step, saved=decision.save)
        if decision.stopped:
            raise stopped(step, decision.stopped, rank=self._agreement.ranks.rank)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save what is not saved yet, and give the Trainer its loaders back."""
        self._saver.save_last(_step(trainer))
        trainer.fit_loop._combined_loader.flattened = [each.loader for each in self._loaders]
        self._interruption.end()

    # What a checkpoint holds, as `saving.Content` asks for it

    def save(self, folder: Path, step: int) -> Parts:
        """Have the Trainer write into the folder; what else is this rank's own. Collective.

        A disk's error is left to where all ranks tell of theirs: the others wait for this one in the Trainer's barrier.
        """
        trainer = self._trainer
        ahead = int(trainer.fit_loop._data_fetcher is not None and trainer.fit_loop._data_fetcher.length is None)
        own = {
            "places": [each.reached(ahead) for each in self._loaders],
            "own": [[generator.get_state() for generator in own_generators(each.loader)] for each in self._loaders],
            "metrics": {name: value.detach() for name, value in trainer._logger_connector._callback_metrics.items()},
        }
        writing: Future[None] = Future()
        try:
            trainer.save_checkpoint(folder / CHECKPOINT, weights_only=False)
            writing.set_result(None)
        except OSError as error:
            writing.set_exception(error)
            trainer.strategy.barrier("Trainer.save_checkpoint")
        return Parts(own, {"script": self._script}, writing=writing)

    def load(self, place: Path, own: Mapping[str, Any]) -> None:
        """Keep what is this rank's own for its loaders; the Trainer has loaded the rest."""
        self._own = own

    def prove(self, place: Path) -> None:
        """Have the Trainer read a checkpoint. Collective. Raises ChainError."""
        ranks = self._agreement.ranks.patient  # for as long as in `newest`
        ranks.alike(lambda: _read(self._trainer, place / CHECKPOINT, ranks.rank))


def _joined(trainer: Any) -> Peers:
    """The processes of the Trainer, which are started here where it starts them itself. Collective."""
    if trainer.world_size > 1 and not dist.is_initialized():
        launcher, begin = trainer.strategy.launcher, trainer.strategy.setup_environment
        if "MultiProcessing" in type(launcher).__name__:
            raise ChainError('the Trainer forks its processes; give strategy="ddp"')
        if launcher is None:
            begin()
        else:
            launcher.launch(begin, trainer=trainer)
    return Peers.meet()


def _read(trainer: Any, path: Path, rank: int) -> None:
    """Read a checkpoint as the Trainer will in the next job. Raises ChainError where that cannot be.

    Rank 0 alone reads what is one file for all ranks: each rank of a node would need host memory for it.
    """
    if rank and path.is_file():
        return
    try:
        trainer.strategy.load_checkpoint(path)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        raise ChainError(f"{path} was saved, and the Trainer cannot read it: {reason}") from None


def _step(trainer: Any) -> int:
    """How many batches have been trained since the run's start."""
    return int(trainer.fit_loop.total_batch_idx) + 1


def _is_whole(trainer: Any) -> bool:
    """Whether no gradients are kept for the next batch: they are in no checkpoint."""
    done = trainer.fit_loop.epoch_loop.batch_progress.current.completed
    return bool(done % trainer.accumulate_grad_batches == 0)


def _is_edge(trainer: Any) -> bool:
    """Whether an epoch begins, or the Trainer has just validated in its middle."""
    progress, every = trainer.fit_loop.epoch_loop.batch_progress, trainer.val_check_batch
    done = progress.total.completed if trainer.check_val_every_n_epoch is None else progress.current.completed
    validates = isinstance(every, int) and trainer.enable_validation and done % every == 0
    return bool(progress.current.completed == 0 or validates)
