"""Hugging Face's Trainer as a chain of short jobs:

    chain = ChainCallback()
    trainer = Trainer(…, callbacks=[chain])
    trainer.train(resume_from_checkpoint=chain.newest(trainer))

The Trainer saves and loads its own checkpoints, `checkpoint-{step}`. The callback seals each one with a manifest when
it is whole, finds the newest sound one, and has the Trainer save and stop when the job ends.
"""

from __future__ import annotations

import math
import sys
import time
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from . import sealed
from .files import all_described, described, remove
from .loader import prepare
from .peers import Agreement, Peers
from .sealed import Folder, newest_of
from .signals import Interruption
from .slurm import end_time
from .supervisor import follow_torchrun
from .telling import ChainError, reporter, say, stopped, tell, tell_in_one_line

follow_torchrun()

# A file in `output_dir`, from the beginning at step 0 until the step after the first sealed checkpoint begins, or the
# training ends or stops: until then the Trainer may write that one again.
ANEW = ".chain-begins"


class ChainCallback(TrainerCallback):
    """Stops the Trainer with status 75 when the job's time is nearly over or a signal comes, and seals checkpoints.

    `time_limit` is as for `resume`. How often the Trainer saves, and how many it keeps, its own arguments say;
    `save_total_limit` has to be 2 or more.
    """

    def __init__(self, time_limit: float | str | None = None) -> None:
        tell_in_one_line()
        self.time_limit = time_limit
        self._interruption = Interruption(saved=lambda: self._saved, saving=lambda: self._saving)
        self._saved, self._saving = 0, False
        self._anew = True  # whether the file may be there
        self._script = Path(sys.argv[0]).name
        self._lock: Any = None
        self._stopped: str | None = None
        self._put_off = False
        self._step_at, self._save_seconds = time.monotonic(), 0.0

    def newest(self, trainer: Any) -> str | None:
        """The newest sound checkpoint in the Trainer's `output_dir`; None where there is none at all. Collective.

        Says what is passed over. Raises ChainError where none is sound, for one of another script or number of
        processes, and where another process trains in the folder.
        """
        ranks = self._ranks.patient  # rank 0 alone reads a checkpoint, which may be large
        folder = Folder(Path(trainer.args.output_dir))
        self._lock = ranks.by_first(folder.open)
        place = ranks.of_first(
            lambda: newest_of(self._script, ranks.world_size, _places(folder), "give another output_dir")
        )
        return str(place) if place else None

    @cached_property
    def _ranks(self) -> Peers:
        return Peers.meet()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin to watch for signals and the time."""
        if args.save_total_limit == 1:
            raise ChainError("save_total_limit=1: the older checkpoint has to stay until the newer is sealed; give 2")
        if args.save_only_model:
            raise ChainError("save_only_model=True: the next job would begin with a new optimizer; leave it out")
        ranks = self._ranks
        prepare(kwargs.get("train_dataloader"))
        self._interruption.watch()
        self._interruption.end_time = ranks.by_first(lambda: end_time(self.time_limit))
        self._saved = state.global_step
        self._agreement = Agreement(ranks, self._interruption, state.global_step, math.inf, None)
        tell("resumed", state.global_step)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """What was saved will not be written again."""
        self._begun_for_good(args)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Have the Trainer save, and stop, where the ranks agree on it."""
        self._step_at = time.monotonic()
        if report := reporter():
            report.count(state.global_step, None)
        if self._agreement.due(state.global_step):
            decision = self._agreement.reach(state.global_step, 0.0, self._save_seconds)
            self._agreement.done(state.global_step, saved=decision.save)
            self._stopped = self._stopped or decision.stopped
            control.should_save |= decision.save
        if self._stopped:
            # With "best", the Trainer saves no step that it evaluates, but the best one. It stops at the next, then.
            unsaved = args.save_strategy == "best" and control.should_evaluate
            if unsaved and control.should_training_stop:
                self._stopped = None  # this was the last step: it ends by itself
            elif unsaved and not self._put_off:
                self._put_off = True
            else:
                control.should_evaluate &= not unsaved
                control.should_save = control.should_training_stop = True
        self._saving = control.should_save
        return control

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Where it stops in the middle of an epoch, the Trainer neither evaluates as at its end, nor saves again."""
        if self._stopped and (state.epoch or 0) % 1:
            control.should_evaluate = control.should_save = control.should_log = False
        return control

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Seal what the Trainer has written, once all ranks have written it. Collective."""
        self._ranks.patient.gather(None)
        self._ranks.patient.by_first(lambda: self._seal(args, state))
        self._saved, self._saving = state.global_step, False
        self._save_seconds = max(self._save_seconds, time.monotonic() - self._step_at)

    def _seal(self, args: TrainingArguments, state: TrainerState) -> None:
        place = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        whose = {"script": self._script, "world_size": args.world_size}
        remove(place / sealed.MANIFEST)  # it may have saved this step before: after the step, and after the epoch
        sealed.seal(place, state.global_step, all_described(place), whose)
        tell("saved", state.global_step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End the process with status 75 where it was stopped: the Trainer has saved by now. Raises Stopped."""
        self._begun_for_good(args)
        if self._stopped:
            raise stopped(self._saved, self._stopped, rank=self._ranks.rank)
        self._interruption.end()

    def _begun_for_good(self, args: TrainingArguments) -> None:
        """What was saved is whole from here on: where it is damaged later, no training begins anew in its place."""
        if self._anew and self._saved and self._ranks.rank == 0:
            (Path(args.output_dir) / ANEW).unlink(missing_ok=True)
            self._anew = False


def _places(folder: Folder) -> list[Path]:
    """Where the Trainer's checkpoints lie, the newest first.

    The Trainer writes them under their own names. Where the first one's job was killed before it was sealed, or while
    it was written once more, no step is lost but the first ones: it is moved out of the Trainer's way, with a warning,
    and the training begins at step 0.
    """
    places, anew = folder.places("checkpoint-"), folder.path / ANEW
    if anew.exists() and not any(sealed.sound(places)) and all(map(_is_torn, places)):
        while places:
            unsealed = places[0].with_name(f"unsealed-{places[0].name}")  # not removed: a user may have put it there
            remove(unsealed, surely=True)
            say(f"warning: {places[0]} was not whole when its job ended, and is now {unsealed}; begins at step 0")
            places.pop(0).rename(unsealed)
    if not places:
        anew.touch()
    return places


def _is_torn(place: Path) -> bool:
    """Whether a checkpoint lacks its manifest or a file, or one has another content: it was killed as it was written.

    Whoever cannot read it, or finds another one's file there, has something to mend, not to begin anew.
    """
    try:
        return any(described(place / name) != each for name, each in sealed.manifest(place)["files"].items())
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
