"""The three lines: `resume`, `Run.steps` and `Run.after`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .loader import batches, epoch_size, heard, own_generators, prepare
from .peers import Agreement, Peers, check_intervals
from .saving import Saver
from .sealed import Folder
from .signals import Interruption
from .slurm import end_time
from .state import State
from .supervisor import follow_torchrun
from .telling import ACCEPT, ChainError, Stopped, reporter, say, stopped, tell, tell_in_one_line
from .things import Things, forgotten

follow_torchrun()


def resume(
    folder: str | Path = "checkpoints",
    *,
    time_limit: float | str | None = None,
    save_minutes: float = 10.0,
    save_steps: int | None = None,
    **things: Any,
) -> Run:
    """Load the newest sound checkpoint of `folder`, or begin at step 0. Collective: every rank calls it.

    `things` are all that has a state, by names of your choice: `model=…, optimizer=…, scheduler=…, scaler=…, ema=…`.
    Give them as they are trained: after DDP, `fully_shard` or `torch.compile`. A dict of tensors and plain values is
    kept as it is: for a batch that was fetched ahead, or the best loss. A checkpoint is saved every
    `save_minutes`, every `save_steps` steps if that is given, and when the job stops. `time_limit` is the job's, in
    seconds or as text in Slurm's form; Slurm's own limit and that of `relay-chain --time` are known without it.

    Raises ChainError, which is one line where nobody catches it: no checkpoint is sound; it is of another script,
    number of processes or shape; another process trains in the folder; a thing that cannot be saved.
    """
    tell_in_one_line()
    check_intervals(save_minutes, save_steps)
    ranks = Peers.meet()
    interruption = Interruption()
    interruption.watch()
    # One rank asks: a thousand would be a burden to Slurm. Its reason stops all.
    interruption.end_time = ranks.by_first(lambda: end_time(time_limit))
    state = ranks.alike(lambda: State(things, ranks))
    place = Folder(Path(folder))
    lock = ranks.by_first(place.open)
    content = Things(state, ranks, place, Path(sys.argv[0]).name)
    saver = Saver(place, content, ranks)
    interruption.saved, interruption.saving = lambda: saver.saved, lambda: saver.under_way
    content.go_on(saver)
    tell("resumed", content.place.step)
    agreement = Agreement(ranks, interruption, content.place.step, save_minutes * 60, save_steps)
    return Run(content, saver, agreement, things, lock)


def reached(folder: str | Path = "checkpoints") -> int:
    """The step from which `resume` will go on; 0 where it begins. Collective.

    It is for what a script changes on the way, and has to change before `resume`: layers that it unfreezes, parameters
    that it adds to an optimizer.
    """
    tell_in_one_line()
    place, ranks = Folder(Path(folder)), Peers.meet()
    return ranks.of_first(place.reached)


class Run:
    """A training that goes on where the last job stopped. `step` and `epoch` tell where it is.

    `step` counts the batches since the run's start; `epoch` counts from 0.
    """

    def __init__(self, content: Things, saver: Saver, agreement: Agreement, things: dict[str, Any], lock: Any) -> None:
        self._content, self._saver, self._agreement, self._things = content, saver, agreement, things
        self._place = content.place  # which is moved on here
        self._lock = lock  # held as long as the run is
        self._goal: int | None = None  # the epochs of `steps` within `epochs`
        self._given: int | None = None  # the step that `steps` has given
        self._stopped: Stopped | None = None
        self._asked = self._of_steps = self._entered = False  # `steps` in this epoch of `epochs`

    @property
    def step(self) -> int:
        """How many steps have been taken since the run's start."""
        return self._place.step

    @property
    def epoch(self) -> int:
        """The number of the epoch, from 0."""
        return self._place.epoch

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of `count`, for an outer loop around `steps(loader)`. Saves at its end."""
        while self._place.epoch < count:
            self._entered, self._goal = False, self._place.epoch + 1
            yield self._place.epoch
            if self._place.epoch < self._goal:
                if not self._entered:
                    remedy = "write within run.epochs: for step, batch in run.steps(loader)"
                    raise ChainError(f"epoch {self._place.epoch} has taken no step of run.steps; {remedy}")
                goes_on = self._place.batch > 0 and self._saver.begun == self.step
                self._place.end_epoch()  # the script has left its loop
                if goes_on:  # that checkpoint would go on with the epoch
                    self._saver.finish()
                    self._saver.begin(self.step)
        self._goal = None
        self.finish()

    def steps(
        self, loader: Iterable[Any], *, epochs: int | None = None, until: int | None = None, reread: bool = False
    ) -> Iterator[tuple[int, Any]]:
        """The steps that are left, from 1, each with its batch: of `epochs` epochs (1 if not told), or up to `until`.

        Batches that an earlier job trained are passed over without reading them. With `reread` they are read and
        dropped, for a dataset whose workers draw random numbers. Within `epochs`, it gives the rest of the epoch.
        Saves at its end. Collective, as every rank takes the same number of steps.
        """
        self._go_on()
        self._of_steps = self._entered = True
        prepare(loader)
        if reached := self._place.loader:
            self._saver.ranks.alike(lambda: self._compare(reached, epoch_size(loader)))
        self._place.loader = epoch_size(loader)
        outer = self._goal is not None
        goal = self._goal or epochs or (None if until else 1)
        if self._goal and self.epoch >= self._goal:
            raise ChainError(
                f"epoch {self.epoch - 1} has had its steps; write run.steps once within run.epochs, with one loader"
            )
        self._saver.use(own_generators(loader))
        while (goal is None or self.epoch < goal) and (until is None or self.step < until):
            began = self.step
            for batch in heard(self._of_epoch(loader, reread)):
                self._place.step += 1
                self._place.batch += 1
                self._given = self.step
                try:
                    yield self.step, batch
                finally:  # also where the script leaves its loop, and goes on with another one
                    self._given = None
                self._go_on()
                if until is not None and self.step >= until:
                    break
            else:
                if self.step == began and not self._place.batch:
                    raise ChainError(f"steps({type(loader).__name__}): it has no batches")
                self._place.end_epoch()
        if not outer:
            self.finish()

    def _compare(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        """Tell that an epoch has other batches than before. Raises ChainError in its middle, if that is not accepted.

        Then it goes on after as many samples, in whole batches; after as many batches where their sizes are not known.
        """
        if before == now:
            return
        words = [f"{each['batches']} batches of {each['batch_size']} samples" for each in (before, now)]
        changed, place = f"the loader's epoch had {words[0]}, and has {words[1]} now", self._place
        if place.batch == before["batches"]:
            place.end_epoch()
        if place.batch:
            where = f"after batch {place.batch} of epoch {self.epoch}"
            if ACCEPT not in os.environ:
                raise ChainError(
                    f"{changed}: {where} it would go on at another place; give the former, or another folder, "
                    "or accept it by `relay-chain --accept COMMAND`"
                )
            if before["batch_size"] and now["batch_size"]:
                place.batch = max(1, place.batch * before["batch_size"] // now["batch_size"])
            changed = f"{changed}; accepted: {where} it goes on after batch {place.batch} of the new ones"
        if self._saver.ranks.rank == 0:
            say(changed)

    def _of_epoch(self, loader: Iterable[Any], reread: bool) -> Iterator[Any]:
        if any(loader is each for each in self._things.values()) and hasattr(loader, "load_state_dict"):
            return iter(loader)  # it keeps its place itself
        return batches(loader, self._place, reread=reread)

    def after(self, step: int) -> None:
        """Call it at the end of each step, on every rank: it saves when it is time.

        Raises Stopped, which ends the script with status 75, where the job's time is nearly over or a signal came;
        and ChainError where a checkpoint could not be written.
        """
        self._go_on()
        if step != (self._given or step):
            raise ChainError(f"run.after({step}): it is step {self._given}; give the number that run.steps has given")
        self._place.step = step
        if report := reporter():
            report.count(step, None)
        if not self._asked:
            self._asked = True
            self._tell_what_is_forgotten()
        if not self._agreement.due(step):
            return
        decision = self._agreement.decide(step, self._saver)
        if decision.stopped:
            self._stop(decision.stopped)
        if decision.save:
            self._saver.begin(self.step)
        self._agreement.done(step, saved=decision.save)

    def finish(self) -> None:
        """Save what is not saved yet, and wait until it is complete. Collective.

        `steps` and `epochs` do it at their end; call it at the end of a loop of your own.
        """
        self._saver.save_last(self.step)
        self._agreement.interruption.end()

    def _stop(self, reason: str) -> None:
        """Save, tell it, and end this process. Collective."""
        self._saver.save_last(self.step)
        self._stopped = stopped(self.step, reason, rank=self._saver.ranks.rank)
        if self._lock:
            self._lock.close()  # this process trains no more
        raise self._stopped

    def _go_on(self) -> None:
        """End a script that has caught `Stopped` and goes on: what it trains now would be lost."""
        if self._stopped:
            say(
                f"the script went on after step {self._stopped.step}, where it was stopped: let SystemExit pass "
                "(write `except Exception` in place of a bare `except`)"
            )
            sys.stdout.flush()
            os._exit(self._stopped.code if isinstance(self._stopped.code, int) else 1)
        if self._agreement.interruption.ended:  # `finish` was called on the way
            self._agreement.interruption.watch()

    def _tell_what_is_forgotten(self) -> None:
        if self._saver.ranks.rank == 0:
            for line in dict.fromkeys(forgotten(self._things, self._content.state, self._saver.further)):
                say(f"warning: {line}")
            if not self._of_steps and not any(isinstance(each, dict) for each in self._things.values()):
                say("a batch that this loop fetches ahead is not saved, unless it is in a dict: resume(…, kept=kept)")
