"""One part of the gate alone, for many strategies in a row, whose processes are started once."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gate_runs import FOLDER, Gates, planned
from preloaded import spawned
from relay.process.ranks import Ranks
from relay.spec.run import Gate

SLOWDOWN = 10  # as a reference with frozen BatchNorm may choose it
TOGETHER = 4  # so many are judged by processes that are started once


@dataclass(frozen=True)
class Asked:
    """A strategy to judge on a task: at a batch of 16 samples, or as `axes` say."""

    strategy: str
    task: str = "lenet-digits"
    options: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        words = [self.strategy, *(f"{k}={v}" for k, v in {**self.options, **self.axes}.items())]
        return "-".join([*words, *([] if self.task == "lenet-digits" else [self.task])])

    def gate(self, processes: int) -> Gate:
        """Its gate on so many processes, as the planner makes it."""
        axes = {"global_batch_size": 16, **self.axes}
        gate, _ = planned(self.strategy, processes, task=self.task, options=self.options, **axes)
        return gate


def _judge(ranks: Ranks, asked: Sequence[tuple[str, Gate, Path]], place: Path) -> None:
    from relay import strategies
    from relay.equivalence import between
    from relay.equivalence.trial_task import TrialData
    from relay.equivalence.verdict import Verdict

    strategies.__path__.append(str(FOLDER))
    for name, gate, dataset in asked:
        verdict, data = Verdict(name), TrialData(gate, dataset, ranks.device)
        between.judge(verdict, data, place / "checkpoints", ranks, slowdown=SLOWDOWN)
        assert not (place / "checkpoints").exists() or ranks.rank
        if ranks.rank == 0:
            (place / f"{name}.json").write_text(json.dumps(verdict.as_dict()))


def between_steps(folder: Path, *gates: tuple[Gate, Path]) -> list[dict[str, Any]]:
    """What `between` finds of gates of one shape, each with its prepared data, in processes that are started once."""
    spawned(_judge, gates[0][0].shape.world_size, [(gate.id, gate, data) for gate, data in gates], folder)
    return [json.loads((folder / f"{gate.id}.json").read_text()) for gate, _ in gates]


def verdicts(
    gates: Gates, folder: Path, asked: Sequence[Asked], processes: int = 2
) -> Callable[[Asked], dict[str, Any]]:
    """What `between` finds of each; a few are judged together, when the first of them is asked for."""

    def of(one: Asked) -> dict[str, Any]:
        path = folder / f"{one}.json"
        if not path.exists():
            first = asked.index(one) // TOGETHER * TOGETHER
            gate_of = {str(each): each.gate(processes) for each in asked[first : first + TOGETHER]}
            given = [(name, gate, gates.dataset(gate)) for name, gate in gate_of.items()]
            spawned(_judge, processes, given, folder)
        return json.loads(path.read_text())

    return of
