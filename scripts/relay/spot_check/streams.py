"""The random generators of a run's ranks, from which a plain process draws as each of them has drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from relay.process.generators import generators, restore_generators, seed_generators
from relay.spec.run import Run


class Streams:
    """The random generators of the run's ranks: each layer draws from that of the rank that computed it."""

    def __init__(self, states: Mapping[int, dict[str, Any]]) -> None:
        self.states, self.moved = dict(states), False

    @classmethod
    def saved(cls, run: Run, state: Path, ranks: int) -> Streams:
        """Those that the run's ranks saved with a state."""
        files = {rank: state / f"rng-{rank}.pt" for rank in range(ranks)}
        return cls({rank: _of_rank(run, torch.load(file, weights_only=True), rank) for rank, file in files.items()})

    @classmethod
    def fresh(cls, seed: int, ranks: int) -> Streams:
        """Other ones."""
        states = {}
        for rank in range(ranks):
            seed_generators(seed * 1_000 + rank)
            states[rank] = generators()
        return cls(states)

    def copy(self) -> Streams:
        """The same, to be drawn from once more."""
        return Streams(self.states)

    @contextmanager
    def drawn(self, model: nn.Module, owners: Iterable[Mapping[str, int]]) -> Iterator[None]:
        """In each forward pass within, a layer draws from its owner's generators; `owners` are those of each pass.

        The backward pass draws nothing, also where it computes activations again.
        """
        passes, current = iter(owners), dict[str, int]()

        def restore(name: str) -> None:
            if current:
                restore_generators(self.states[current[name]])

        def keep(name: str) -> None:
            if current:
                before, self.states[current[name]] = self.states[current[name]], generators()
                self.moved |= not _same(before, self.states[current[name]])

        hooks = [
            model.register_forward_pre_hook(lambda *_: current.update(next(passes))),
            model.register_forward_hook(lambda *_: current.clear()),
        ]
        for name, layer in model.named_children():
            hooks.append(layer.register_forward_pre_hook(lambda *_, name=name: restore(name)))
            hooks.append(layer.register_forward_hook(lambda *_, name=name: keep(name)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _of_rank(run: Run, state: dict[str, Any], rank: int) -> dict[str, Any]:
    """A rank's generators, with that of its own GPU first: here it is the only one."""
    if not state["cuda"]:
        return state
    local_rank = rank % run.shape.processes_per_node
    return {**state, "cuda": [state["cuda"][local_rank % len(state["cuda"])]]}


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    pairs = [(one["torch"], other["torch"]), *zip(one["cuda"] or (), other["cuda"] or (), strict=False)]
    return all(torch.equal(mine, its) for mine, its in pairs)
