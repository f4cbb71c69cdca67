"""The random generators of a run's ranks, from which a plain process draws as each of them has drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from relay.chain.generators import generators, restore
from relay.chain.saving import own_file, read
from relay.process.generators import alike, seed_generators
from relay.spec.run import Run

WHOLE = ""  # the name of the whole model among its modules


class Streams:
    """The random generators of the run's ranks: each module draws from that of the rank that computed it."""

    def __init__(self, states: Mapping[int, dict[str, Any]]) -> None:
        self.states, self.moved = dict(states), False
        self.strayed = False  # numbers were drawn outside of the modules whose owners are known

    @classmethod
    def saved(cls, run: Run, state: Path) -> Streams:
        """Those that the run's ranks saved with a state."""
        files = {rank: state / own_file(rank) for rank in range(run.shape.world_size)}
        return cls({rank: _of_rank(run, read(file)["generators"], rank) for rank, file in files.items()})

    @classmethod
    def fresh(cls, seed: int, ranks: int) -> Streams:
        """Other ones."""
        states = {}
        for rank in range(ranks):
            seed_generators(seed * 1_000 + rank)
            states[rank] = generators()
        return cls(states)

    @contextmanager
    def drawn(self, model: nn.Module, owners: Iterable[Mapping[str, int]]) -> Iterator[None]:
        """In each forward pass within, a module draws from its owner's generators.

        `owners` are the ranks by the names of modules, for each pass: of the whole model, or of its children.

        The backward pass draws nothing, also where it computes activations again.
        """
        passes, current = iter(owners), dict[str, int]()
        between: list[dict[str, Any]] = []  # the generators' state when the last module had ended

        def begin() -> None:
            current.update(next(passes))
            between[:] = [generators()]

        def end() -> None:
            self.strayed |= WHOLE not in current and not alike(between[0], generators())
            current.clear()

        def go_on(name: str) -> None:
            if name in current:
                self.strayed |= not alike(between[0], generators())
                restore(self.states[current[name]])

        def keep(name: str) -> None:
            if name in current:
                between[:] = [generators()]
                before, self.states[current[name]] = self.states[current[name]], between[0]
                self.moved |= not alike(before, self.states[current[name]])

        hooks = [model.register_forward_pre_hook(lambda *_: begin())]
        for name, layer in [(WHOLE, model), *model.named_children()]:
            hooks.append(layer.register_forward_pre_hook(lambda *_, name=name: go_on(name)))
            hooks.append(layer.register_forward_hook(lambda *_, name=name: keep(name)))
        hooks.append(model.register_forward_hook(lambda *_: end()))
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
