"""One part of the gate alone, for many strategies in a row, whose processes are started once."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gate_runs import FEW_STEPS, FOLDER, Gates, planned, shortened
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


@dataclass(frozen=True)
class Planted:
    """A wrong strategy, or a fault of `strategies/wrong.py`: parts that fail, and such as pass.

    `says`: how the problems beside them begin. `where`: where it differs first.
    """

    fault: str
    fails: frozenset[str] | set[str] = frozenset()
    says: tuple[str, ...] = ()
    task: str = "lenet-digits"
    axes: dict[str, Any] = field(default_factory=dict)
    where: str = ""
    passes: frozenset[str] | set[str] = frozenset()

    def __str__(self) -> str:
        return self.fault.removeprefix("wrong_")

    @property
    def asked(self) -> Asked:
        """What is judged."""
        if self.fault.startswith("wrong_"):
            return Asked(self.fault, self.task, {}, self.axes)
        return Asked("wrong", self.task, {"fault": self.fault}, self.axes)

    def caught(self, verdict: dict[str, Any], *, exactly: bool) -> None:
        """Each failed part is told as a problem, beside nothing but what is planted. `exactly`: no other part fails."""
        failed = {part["name"] for part in verdict["parts"] if not part["passed"]}
        named = [each for name in failed for each in verdict["problems"] if each.startswith(f"{name}: ")]
        beside = [problem for problem in verdict["problems"] if problem not in named]
        assert self.fails == failed if exactly else self.fails <= failed
        assert self.passes <= {part["name"] for part in verdict["parts"]} - failed
        assert len(named) == len(failed)
        assert len(beside) == len(self.says) if exactly or not self.says else beside
        for text in self.says:
            assert any(problem.startswith(text) for problem in beside), beside
        assert (verdict["where"] or "").startswith(self.where)


def judge_in_a_row(ranks: Ranks, asked: Sequence[tuple[str, Gate, Path, Path | None]], place: Path) -> None:
    """Write the verdict of each, of a name, a gate, its data and its trained reference; None: of `between` alone."""
    from relay import strategies
    from relay.equivalence import between, gate
    from relay.equivalence.plain import deterministic
    from relay.equivalence.trial_task import TrialData
    from relay.equivalence.verdict import Verdict

    strategies.__path__.append(str(FOLDER))
    deterministic()
    for name, run, dataset, trained in asked:
        with strategies.service(run):
            if trained:
                verdict = gate.judge(run, dataset, trained, ranks, place / "checkpoints")
            else:
                verdict, data = Verdict(name), TrialData(run, dataset, ranks.device)
                between.judge(verdict, data, place / "checkpoints", ranks, slowdown=SLOWDOWN)
            ranks.barrier()
        assert trained or not (place / "checkpoints").exists() or ranks.rank
        if ranks.rank == 0:
            (place / f"{name}.json").write_text(json.dumps(verdict.as_dict()))


def between_steps(folder: Path, *gates: tuple[Gate, Path]) -> list[dict[str, Any]]:
    """What `between` finds of gates of one shape, each with its prepared data, in processes that are started once."""
    given = [(gate.id, gate, data, None) for gate, data in gates]
    spawned(judge_in_a_row, gates[0][0].shape.world_size, given, folder)
    return [json.loads((folder / f"{gate.id}.json").read_text()) for gate, _ in gates]


def verdicts(
    gates: Gates, folder: Path, asked: Sequence[Asked], processes: int = 2
) -> Callable[[Asked], dict[str, Any]]:
    """What `between` finds of each; a few are judged together, when the first of them is asked for."""

    def of(one: Asked) -> dict[str, Any]:
        path = folder / f"{one}.json"
        if not path.exists():
            first = asked.index(one) // TOGETHER * TOGETHER
            given = []
            for each in asked[first : first + TOGETHER]:
                axes = {"global_batch_size": 16, **each.axes}
                gate, _ = planned(each.strategy, processes, task=each.task, options=each.options, **axes)
                given.append((str(each), gate, gates.dataset(gate), None))
            spawned(judge_in_a_row, processes, given, folder)
        return json.loads(path.read_text())

    return of


# Whole gates: those of a world size share their processes


def named(cell: dict[str, Any]) -> str:
    """A cell in one word."""
    return "-".join("-".join(value) if isinstance(value, dict) else str(value) for value in cell.values())


def judged(gates: Gates, cells: list[dict[str, Any]], world_size: int, place: Path) -> dict[str, Any]:
    """The verdicts of gates, by their cells' names. A cell is what `gate_runs.planned` takes."""
    asked = []
    for cell in cells:
        run, plain = planned(devices=world_size, **cell)
        trained = gates.reference(shortened(plain, FEW_STEPS))
        asked.append((named(cell), shortened(run, FEW_STEPS), gates.dataset(run), trained))
    spawned(judge_in_a_row, world_size, asked, place)
    return {name: json.loads((place / f"{name}.json").read_text()) for name, *_ in asked}
