"""Rolling checkpoints of a run: each is complete or absent, the last two are kept, a damaged one is passed over.

The training goes on while one is written: it waits only for the copy of the state to host memory.
"""

from __future__ import annotations

import random
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from relay.base.errors import PeerFailed
from relay.base.files import read_json, sync_directory, sync_file, write_json
from relay.process.ranks import Ranks
from relay.run_folder.sealed import complete, seal, sound, steps
from relay.strategies.base import Strategy

KEPT = 2
LONGEST = "longest_save.json"
# What a rank has to say of the save in the background: that of the whole run is the largest of all ranks'.
DONE, WRITING, FAILED = 0.0, 1.0, 2.0


def seed_generators(seed: int) -> None:
    """Start every random generator that `generators` saves: torch's, also on GPUs, numpy's and Python's."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def generators() -> dict[str, Any]:
    """The state of every random generator of this process, as tensors and plain values (`weights_only` reads it)."""
    numpy: dict[str, Any] = np.random.get_state(legacy=False)
    numpy["state"]["key"] = torch.from_numpy(numpy["state"]["key"].astype(np.int64))
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None,
        "python": list(random.getstate()[1]),
        "python_gauss": random.getstate()[2],
        "numpy": numpy,
    }


def restore_generators(state: dict[str, Any]) -> None:
    """The inverse of `generators`."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_initialized():  # not where a CPU goes on with what a GPU began
        for number, its_state in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(its_state, number)
    random.setstate((3, tuple(state["python"]), state["python_gauss"]))
    numpy = state["numpy"]
    numpy["state"]["key"] = numpy["state"]["key"].numpy().astype(np.uint32)
    np.random.set_state(numpy)


@dataclass
class Saving:
    """A save in the background; `seconds` are known when it has ended."""

    step: int
    end: Future[float]

    @property
    def progress(self) -> float:
        """DONE, WRITING or FAILED, on this rank."""
        if not self.end.done():
            return WRITING
        return FAILED if self.end.exception() else DONE


class Checkpoints:
    """The rolling directory of one run: `step-{n}/` with the strategy's files, one `rng-{rank}.pt` for each rank, and
    a manifest, written last, with the size and SHA-256 of every file.

    `torch.distributed.checkpoint` reads its metadata with pickle; so nothing is read before its checksum and its
    owner were found to be those of the run. `longest_save_seconds` is what a save has taken, from its beginning until
    it was complete, in this job or an earlier one; 0 where none has ended yet.
    """

    def __init__(self, directory: Path, ranks: Ranks) -> None:
        self.directory, self.ranks = directory, ranks
        self.longest_save_seconds: float = (read_json(directory / LONGEST) or {}).get("seconds", 0.0)
        self._saving: Saving | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")

    def begin(self, strategy: Strategy, step: int) -> None:
        """Begin to save the state after `step` steps; returns once it is copied. Collective; one save at a time."""
        assert self._saving is None, "a save is still being written"
        began, state = time.monotonic(), generators()
        partial = self.directory / f"partial-{step}"
        partial.mkdir(parents=True, exist_ok=True)
        written = strategy.save(partial / "strategy")
        self._saving = Saving(step, self._thread.submit(self._complete, partial, step, state, written, began))

    def _complete(self, partial: Path, step: int, state: dict[str, Any], written: Future[Any], began: float) -> float:
        """In the background: wait until all parts are written, and make a checkpoint of them; the seconds it took."""
        path = partial / f"rng-{self.ranks.rank}.pt"
        torch.save(state, path)
        sync_file(path)
        written.result()
        seen = {str(part.relative_to(partial)) for part in (path, *partial.rglob("*.distcp"))}
        parts = self._meet(seen)
        if self.ranks.rank == 0:
            seal(partial, step, self.ranks.world_size, parts)
            final = self.directory / f"step-{step}"
            shutil.rmtree(final, ignore_errors=True)  # a damaged one of the same step, passed over at the start
            partial.rename(final)
            sync_directory(self.directory)
            self._tidy(step)
            longest = max(self.longest_save_seconds, time.monotonic() - began)
            write_json(self.directory / LONGEST, {"seconds": round(longest, 3)})
        return time.monotonic() - began

    def _meet(self, seen: set[str]) -> set[str]:
        """Wait until all ranks' parts are written: their files, of which each rank has seen its own at least."""
        every: list[set[str]] = [set()] * self.ranks.world_size
        dist.all_gather_object(every, seen, group=self.ranks.saving)
        return set().union(*every)

    def _tidy(self, step: int) -> None:
        """Keep the newest of this training. One beyond its step was damaged or left by an earlier start: it must
        neither push out a sound one nor be gone on with later."""
        kept = [found for found in complete(self.directory) if found <= step][:KEPT]
        for old, place in list(steps(self.directory)):
            if old not in kept:
                shutil.rmtree(place)

    @property
    def progress(self) -> float:
        """What this rank has to say of the save in the background, for the ranks to agree on; DONE without any."""
        return self._saving.progress if self._saving else DONE

    def agree(self, progress: float) -> bool:
        """Told the largest `progress` of all ranks: whether another save can begin. Collective where one has failed.

        Raises RuntimeError with the reason on the rank whose part failed, and PeerFailed on the others.
        """
        if progress == FAILED:
            self._fail()
        if progress == DONE and self._saving:
            self.longest_save_seconds = max(self.longest_save_seconds, self._saving.end.result())
            self._saving = None
        return self._saving is None

    def finish(self) -> None:
        """Wait until the save that was begun, if any, is complete on all ranks. Collective; raises as `agree` does."""
        progress = WRITING
        while not self.agree(progress):
            wait([self._saving.end] if self._saving else [], timeout=1.0)
            # However long the slowest takes: the control group's timeout is for lost peers.
            (progress,) = self.ranks.largest([self.progress])

    def save(self, strategy: Strategy, step: int) -> None:
        """Save the state after `step` steps, and wait until it is complete. Collective."""
        self.begin(strategy, step)
        self.finish()

    def _fail(self) -> None:
        """End a save that failed on some rank, with the reason of the first one."""
        assert self._saving is not None
        error = self._saving.end.exception() if self._saving.end.done() else None
        if isinstance(error, CheckpointException):  # the same on all ranks: whose part failed it knows
            error = error.failures.get(self.ranks.rank, (None, None))[0]
        told = self.ranks.gather(None if error is None else f"{type(error).__name__}: {error}")
        rank, reason = next(((rank, line) for rank, line in enumerate(told) if line), (0, "no rank tells why"))
        line = f"the checkpoint of step {self._saving.step} could not be saved: {reason} (rank {rank})"
        if error is None:
            raise PeerFailed(line)
        raise RuntimeError(line) from error

    def resume(self, strategy: Strategy, first: int, last: int) -> int | None:
        """Load the newest sound checkpoint of a step within [first, last] and return its step; None without one.

        Collective: rank 0 chooses, and removes what killed saves have left. Warnings name what was passed over.
        """
        looking = self._thread.submit(self._newest_sound, first, last) if self.ranks.rank == 0 else None
        # Reading a large checkpoint for its checksums may take longer than the control group waits.
        while self.ranks.largest([float(looking is not None and not looking.done())])[0]:
            wait([looking] if looking else [], timeout=1.0)
        chosen, adopted = self.ranks.gather((looking.result(), self._adopted_step()) if looking else None)[0]
        if chosen is None:
            return None
        place = self.directory / f"step-{chosen}"
        strategy.load(place / "strategy")
        if chosen != adopted:  # another run's ranks need not draw what this one's should, such as alike in a replica
            restore_generators(torch.load(place / f"rng-{self.ranks.rank}.pt", weights_only=True))
        self.ranks.barrier()
        return int(chosen)

    def _adopted_step(self) -> int | None:
        """The step from which this run has gone on with another one's checkpoint."""
        chain = read_json(self.directory / "chain.json") or {}
        return (chain.get("adopted_from") or {}).get("step")

    def _newest_sound(self, first: int, last: int) -> int | None:
        for leftover in self.directory.glob("partial-*"):
            shutil.rmtree(leftover)
        return next(sound(self.directory, first, last), None)
