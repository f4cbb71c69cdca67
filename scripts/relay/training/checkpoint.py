"""Rolling checkpoints of a run: each is complete or absent, the last two are kept, a damaged one is passed over.

The training goes on while one is written: it waits only for the copy of the state to host memory.
"""

from __future__ import annotations

import io
import math
import time
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from relay.base.ending import of_a_disk
from relay.base.errors import PeerFailed, UserError
from relay.base.files import remove
from relay.chain.agreement import Background, Saving
from relay.chain.files import all_described, described, disk_refusal, sync
from relay.chain.generators import generators, restore
from relay.chain.sealed import publish, superseded, wait_for
from relay.process.ranks import Ranks
from relay.run_folder import alive, attempts, run_chain
from relay.run_folder.sound_checkpoints import MANIFEST, complete, manifest, remove_leftovers, sound
from relay.strategies.base import Strategy


def no_sound_checkpoint(run: str, first: int, last: int) -> str:
    """The line for a run that has nothing to go on from, though it should have."""
    return (
        f"run {run}: no sound checkpoint for steps {first} to {last}; "
        f"delete results/runs/{run} to train it from the start"
    )


class Checkpoints(Background[float]):
    """The rolling directory of one run: `step-{n}/` with the strategy's files, one `rng-{rank}.pt` for each rank, and
    a manifest, written last, with the size and SHA-256 of every file.

    `torch.distributed.checkpoint` reads its metadata with pickle; so nothing is read before its checksum and its
    owner were found to be those of the run.
    `rolling`: of a folder of states that all stay, those of the same run that do not.
    """

    ranks: Ranks

    def __init__(self, directory: Path, ranks: Ranks, *, rolling: Checkpoints | None = None) -> None:
        super().__init__(ranks)
        self.directory, self.ranks, self._all_stay = directory, ranks, rolling is not None
        work = rolling.directory if rolling else directory
        self._chain = run_chain.read(work) if ranks.rank == 0 else None

    def begin(self, strategy: Strategy, step: int) -> None:
        """Begin to save the state after `step` steps; returns once it is copied. Collective; one save at a time."""
        assert self._saving is None, "a save is still being written"
        began, state = time.monotonic(), generators()
        # Processes of an earlier attempt may still be writing theirs.
        partial = self.directory / f"partial-{alive.attempt()}-{step}"
        try:
            partial.mkdir(mode=0o755, exist_ok=True)
        except FileNotFoundError:
            raise UserError(attempts.gone(self.directory)) from None
        written = strategy.save(partial / "strategy")
        part = self._thread.submit(self._complete, partial, step, state, written, began)
        self._saving = Saving(step, partial, part, began)

    def _complete(self, partial: Path, step: int, state: dict[str, Any], written: Future[Any], began: float) -> float:
        """In the background: wait until all parts are written, and make a checkpoint of them; the seconds it took."""
        path = partial / f"rng-{self.ranks.rank}.pt"
        content = io.BytesIO()  # where a disk is full, torch's own writing tells no reason
        torch.save(state | {"step": step}, content)
        path.write_bytes(content.getbuffer())
        sync(path)
        written.result()
        # All ranks' parts are written: their files, of which each rank has seen its own at least.
        seen = {str(part.relative_to(partial)) for part in (path, *partial.rglob("*.distcp"))}
        every: list[set[str]] = [set()] * self.ranks.world_size
        dist.all_gather_object(every, seen, group=self.ranks.saving)
        if self.ranks.rank == 0:
            parts = set().union(*every)
            wait_for(partial, parts)
            files = all_described(partial)
            # A network file system may show a file, and not yet list it.
            files |= {part: described(partial / part) for part in parts - files.keys()}
            for file in files:
                sync(partial / file)  # most of the time that a save takes
            longest = max(self.longest_save_seconds, time.monotonic() - began)
            chain = self._chain.as_dict() if self._chain else None
            whose = {"run": self.directory.name, "chain": chain, "world_size": self.ranks.world_size}
            facts = {**whose, "save_seconds": round(float(longest), 3)}
            publish(partial, self.directory / f"step-{step}", step, files, facts, MANIFEST)
            for old in () if self._all_stay else superseded(self.directory, step, MANIFEST):
                remove(old)
        return time.monotonic() - began

    def _written(self, saving: Saving[float]) -> None:
        """The checkpoint is complete."""
        self.longest_save_seconds = max(self.longest_save_seconds, saving.part.result())

    def save(self, strategy: Strategy, step: int) -> None:
        """Save the state after `step` steps, and wait until it is complete. Collective."""
        self.begin(strategy, step)
        self.finish()

    def _failed(self, saving: Saving[float]) -> None:
        """Raises RuntimeError with the reason on the rank whose part failed first, and PeerFailed on the others."""
        error = saving.part.exception() if saving.part.done() else None
        if isinstance(error, CheckpointException):  # the same on all ranks: whose part failed it knows
            error = error.failures.get(self.ranks.rank, (None, None))[0]
        # torch's own words on a full disk tell nothing of it, and torch may have lost what led to them.
        reason_here = error and (of_a_disk(error) or of_a_disk(disk_refusal(self.directory)) or error)
        rank, reason = self._reason(f"{type(reason_here).__name__}: {reason_here}" if reason_here else None)
        if self.ranks.rank == 0:
            with suppress(OSError):  # room for what others write there
                remove(saving.partial)
        line = f"the checkpoint of step {saving.step} could not be saved: {reason} (rank {rank})"
        if error is None:
            raise PeerFailed(line)
        raise RuntimeError(line) from reason_here

    def resume(self, strategy: Strategy, first: int, last: int) -> int | None:
        """Load the newest sound checkpoint of a step within [first, last] and return its step; None without one.

        Collective: rank 0 chooses, and removes what killed saves have left. Warnings name what was passed over.
        """
        looking = self._thread.submit(self._newest_sound, first, last) if self.ranks.rank == 0 else None
        # Reading a large checkpoint for its checksums may take longer than the control group waits.
        while self.ranks.largest([float(looking is not None and not looking.done())])[0]:
            wait([looking] if looking else [], timeout=1.0)
        chosen, adopted, took, refused = self.ranks.gather(looking.result() if looking else (None, None, 0.0, ""))[0]
        if refused:
            raise UserError(refused)
        if chosen is None:
            return None
        place = self.directory / f"step-{chosen}"
        strategy.load(place / "strategy")
        if chosen != adopted:  # another run's ranks need not draw what this one's should, such as alike in a replica
            state = torch.load(place / f"rng-{self.ranks.rank}.pt", weights_only=True)
            if state.pop("step", None) != chosen:
                raise UserError(f"{place} has the generators of another step; delete it, and start the same call again")
            restore(state)
            self.longest_save_seconds = took
        self.ranks.barrier()
        return int(chosen)

    def _newest_sound(self, first: int, last: int) -> tuple[int | None, int | None, float, str]:
        """On rank 0: the step to go on from, that of another run's checkpoint, the seconds that saving has taken, and
        why nothing may be loaded."""
        remove_leftovers(self.directory)
        chain = self._chain
        adopted = chain.adopted_step if chain and chain.adopted_from else None
        try:
            newest = next(sound(self.directory, first, last, generation=chain.generation if chain else None), None)
        except UserError as error:  # other users could have written what is there
            return None, None, 0.0, str(error)
        if newest is None and any(first <= step <= last for step in complete(self.directory)):
            return None, None, 0.0, no_sound_checkpoint(self.directory.name, first, last)
        took: Any = None
        with suppress(OSError, ValueError):  # a hint
            took = manifest(self.directory / f"step-{newest}").get("save_seconds")
        return newest, adopted, took if isinstance(took, float) and 0 <= took < math.inf else 0.0, ""
