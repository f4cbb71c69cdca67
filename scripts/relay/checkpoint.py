"""Rolling checkpoints of a run: each is complete or absent, the last two are kept, a damaged one is passed over."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from relay.files import read_json, sha256, sync_directory, sync_file, write_json
from relay.ranks import Ranks
from relay.strategies.base import Strategy

KEPT = 2
MANIFEST = "complete.json"


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
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
        "python": list(random.getstate()[1]),
        "python_gauss": random.getstate()[2],
        "numpy": numpy,
    }


def restore_generators(state: dict[str, Any]) -> None:
    """The inverse of `generators`."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"])
    random.setstate((3, tuple(state["python"]), state["python_gauss"]))
    numpy = state["numpy"]
    numpy["state"]["key"] = numpy["state"]["key"].numpy().astype(np.uint32)
    np.random.set_state(numpy)


@dataclass(frozen=True)
class Checkpoints:
    """The rolling directory of one run: `step-{n}/` with the strategy's files, one `rng-{rank}.pt` for each rank, and
    a manifest, written last, with the size and SHA-256 of every file.

    `torch.distributed.checkpoint` reads its metadata with pickle; so nothing is read before its checksum and its
    owner were found to be those of the run.
    """

    directory: Path
    ranks: Ranks

    def save(self, strategy: Strategy, step: int) -> None:
        """Save the state after `step` steps. Collective."""
        partial, final = self.directory / f"partial-{step}", self.directory / f"step-{step}"
        if self.ranks.rank == 0:
            for leftover in self.directory.glob("partial-*"):
                shutil.rmtree(leftover)
            shutil.rmtree(final, ignore_errors=True)  # a damaged one of the same step, passed over at the start
            partial.mkdir(parents=True)
        self.ranks.barrier()
        strategy.save(partial / "strategy")
        torch.save(generators(), partial / f"rng-{self.ranks.rank}.pt")
        self.ranks.barrier()
        if self.ranks.rank == 0:
            self._seal(partial, step)
            partial.rename(final)
            sync_directory(self.directory)
            self._tidy(step)
        self.ranks.barrier()

    def _seal(self, partial: Path, step: int) -> None:
        files = {}
        for path in sorted(p for p in partial.rglob("*") if p.is_file()):
            sync_file(path)
            files[str(path.relative_to(partial))] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
        write_json(partial / MANIFEST, {"step": step, "world_size": self.ranks.world_size, "files": files})

    def _tidy(self, step: int) -> None:
        """Keep the newest of this training. One beyond its step was damaged or left by an earlier start: it must
        neither push out a sound one nor be gone on with later."""
        kept = {f"step-{found}" for found in [n for n in self._complete() if n <= step][:KEPT]}
        for old in self.directory.glob("step-*"):
            if old.name not in kept:
                shutil.rmtree(old)

    def _complete(self) -> list[int]:
        """Steps of which a checkpoint is there, newest first."""
        return sorted((int(p.parent.name[5:]) for p in self.directory.glob(f"step-*/{MANIFEST}")), reverse=True)

    def resume(self, strategy: Strategy, first: int, last: int) -> int | None:
        """Load the newest sound checkpoint of a step within [first, last] and return its step; None without one.

        Collective: rank 0 chooses. Warnings name what was passed over.
        """
        chosen = self.ranks.gather(next(self._sound(first, last), None) if self.ranks.rank == 0 else None)[0]
        if chosen is None:
            return None
        place = self.directory / f"step-{chosen}"
        strategy.load(place / "strategy")
        state = place / f"rng-{self.ranks.rank}.pt"
        if state.exists():  # absent where the run goes on with more ranks than it had
            restore_generators(torch.load(state, weights_only=True))
        self.ranks.barrier()
        return int(chosen)

    def _sound(self, first: int, last: int) -> Iterator[int]:
        for step in self._complete():
            if not first <= step <= last:
                continue
            problem = damage(self.directory / f"step-{step}")
            if problem is None:
                yield step
            else:
                print(f"warning: checkpoint of step {step} is passed over: {problem}", flush=True)


def damage(place: Path) -> str | None:
    """What is wrong with a checkpoint's directory, in one line; None where it is sound."""
    try:
        for name, expected in read_json(place / MANIFEST)["files"].items():
            path = place / name
            if not path.is_file():
                return f"{path} is missing"
            if path.stat().st_uid != os.getuid():
                return f"{path} belongs to another user"
            if path.stat().st_size != expected["bytes"] or sha256(path) != expected["sha256"]:
                return f"{path} does not have the checksum of its manifest"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{place / MANIFEST} cannot be read ({error})"
    return None
