"""What a run's checkpoints hold, and from which one a segment goes on. `relay.chain` writes, seals and keeps them."""

from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from relay.base.errors import PeerFailed, UserError
from relay.chain import sealed
from relay.chain.saving import Parts, SaveError, Saver
from relay.chain.sealed import Folder, remove_leftovers, step_of
from relay.process.ranks import Ranks
from relay.run_folder import alive, attempts, run_chain
from relay.run_folder.run_chain import RunChain
from relay.run_folder.sound_checkpoints import damage, tell_who_may_write, warn, within
from relay.strategies.base import Strategy


class Trained:
    """The content of a run's checkpoints: model, optimizer and scaler, in the strategy's own format.

    torch reads its metadata with pickle. So nothing is loaded before its checksum and its owner were found to be those
    of the run.
    """

    def __init__(self, strategy: Strategy, ranks: Ranks, work: Path) -> None:
        self.strategy, self.ranks, self.work = strategy, ranks, work

    @cached_property
    def chain(self) -> RunChain | None:
        """The run's chain, as it is when this job begins to train; None on all ranks but the first."""
        return run_chain.read(self.work) if self.ranks.rank == 0 else None

    def saver(self, folder: Folder | None = None) -> Saver:
        """What saves it, and loads it: as the run's rolling checkpoints, or in another folder."""
        return RunSaver(folder or Folder(self.work), self, self.ranks, alive.attempt())

    def go_on(self, saver: Saver, first: int, last: int) -> int:
        """Load the newest sound checkpoint of a step within [first, last], and return its step; 0 where a run begins.

        Collective. What killed saves have left goes. Warnings name what is passed over. Raises UserError where the
        checkpoint to go on from is gone, or another user could have put one there.
        """
        places, chain, refused = self.ranks.of_first(lambda: self._there(first, last))
        if refused:
            raise UserError(refused)
        damage_of = partial(damage, generation=chain.generation if chain else None)
        tell = warn if self.ranks.rank == 0 else lambda _: None
        place = next(sealed.sound(places, lambda place: saver.damage(place, damage_of), tell), None)
        if place is None:
            if places or first > 0:
                raise UserError(
                    f"run {self.work.name}: no sound checkpoint for steps {first} to {last}; "
                    f"delete results/runs/{self.work.name} to train it from the start"
                )
            return 0
        if self.ranks.rank == 0:
            tell_who_may_write(place)
        step = int(step_of(place))
        saver.load(place, of_this_run=not (chain and chain.adopted_from and chain.adopted_step == step))
        self.ranks.gather(None)  # all have read it
        return step

    def _there(self, first: int, last: int) -> tuple[list[Path], RunChain | None, str]:
        """On rank 0: where checkpoints within [first, last] lie, the run's chain, and why none of them may be read."""
        remove_leftovers(self.work)
        try:
            return within(self.work, first, last), self.chain, ""
        except UserError as refusal:
            return [], None, str(refusal)

    def save(self, folder: Path, step: int) -> Parts:
        """Begin to write into the folder; returns once everything is copied. Collective.

        Raises UserError where the run's folder has vanished.
        """
        self.ranks.alike(self._check)
        # The chain is known again from here where its own file is lost.
        facts = {"run": self.work.name, "chain": self.chain.as_dict() if self.chain else None}
        return Parts({}, facts, writing=self.strategy.save(folder / "strategy"))

    def _check(self) -> None:
        if not self.work.exists():
            raise UserError(attempts.gone(self.work))

    def load(self, place: Path, own: Mapping[str, Any]) -> None:
        """Read what `save` wrote, under any strategy. Collective."""
        self.strategy.load(place / "strategy")

    def prove(self, place: Path) -> None:
        """Nothing is to be done: the gate has loaded what the strategy saves."""


class RunSaver(Saver):
    """A run's: what ends its processes is a fault of their own."""

    def failed(self, step: int, failure: SaveError) -> None:
        """Say that a save has failed, which the next one may mend.

        Where the one before failed, too, raises RuntimeError on the rank that could not write, with its reason, and
        PeerFailed on the others.
        """
        line = f"the checkpoint of step {step} could not be saved: {failure}"
        if not failure.again:
            if failure.rank == self.ranks.rank:
                print(f"warning: {line}; the next save tries again", flush=True)
            return
        if failure.rank != self.ranks.rank:
            raise PeerFailed(line)
        raise RuntimeError(line) from failure.__cause__
