"""What the equivalence gate finds: figures with their limits, and problems in a line each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from relay.run_folder.faults import Fault
from relay.run_folder.known_faults import look_up
from relay.run_folder.snapshot import OWN_TASK
from relay.spec.run import OwnBatch

TrialName = Literal[
    "algorithm",
    "scaled",
    "as trained",
    "between steps",
    "own precision",
    "replayed",
    "smooth twin",
    "own optimizer",
    "gradient",
    "lossy",
    "communication",
]
Compared = Literal["losses", "parameters", "statistics", "outputs", "state", "resumed"]
UNFINISHED = "unfinished.json"  # beside the verdict: what it was before the own batch that the gate is at
FAULTED = "faulted.json"  # beside where the verdict goes: the fault of the gate's first try, which is no verdict
# What another gate's processes, which judged this gate after their own, have found: its verdict; null where it has to
# be judged by itself, because it has failed there, or has not come to its end.
ALONG = "along.json"
CANNOT_RUN = "it cannot run this training"
FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in .*\n(?: {4}(?P<code>\S.*)\n)?', re.MULTILINE)
MOST_LETTERS = 400  # of torch's words: some go on with pages of shapes


class Limited:
    """A figure with a limit."""

    figure: float
    limit: float

    @property
    def passed(self) -> bool:
        """Whether the figure is at most the limit. No number never passes."""
        return self.figure <= self.limit

    def as_dict(self) -> dict[str, Any]:
        """As it is written to verdict.json."""
        return {**vars(self), "passed": self.passed}


@dataclass(frozen=True)
class Part(Limited):
    """One comparison of one trial with the reference."""

    trial: TrialName
    compared: Compared
    what: str
    figure: float
    limit: float

    @property
    def name(self) -> str:
        """What people read."""
        name = f"{self.trial}: {self.compared}"
        return "evaluation" if name == "algorithm: outputs" else name

    @property
    def problem(self) -> str:
        """What a verdict says of it where it has not passed."""
        return f"{self.name}: {self.what}: {self.figure:.1e}, allowed is {self.limit:.0e}"

    def as_dict(self) -> dict[str, Any]:
        """As it is written to verdict.json."""
        return {**super().as_dict(), "name": self.name}


@dataclass
class Verdict:
    """Gathers parts and problems; equivalent where every part passed and there is no problem.

    `own` are the verdicts of the steps at the runs' own batch sizes. A run is judged by the shared parts and by those
    of its own batch.

    `where` says in a phrase where a training that failed parts from the plain one: at which step, and in what.
    `unprovable` says why something cannot be compared; such a training is neither equivalent nor wrong, unless there is
    a problem.
    """

    gate: str
    parts: list[Part] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    own: dict[OwnBatch, Verdict] = field(default_factory=dict)
    where: str | None = None
    unprovable: str | None = None

    def add(self, part: Part) -> None:
        """Take a comparison in; one that fails is a problem."""
        self.parts.append(part)
        if not part.passed:
            self.problems.append(part.problem)

    def tell(self, problems: Iterable[str]) -> None:
        """Add problems, each of them once."""
        self.problems += [problem for problem in dict.fromkeys(problems) if problem not in self.problems]

    def take(self, other: Verdict) -> None:
        """Take in what another one has found of the same gate."""
        self.parts += other.parts
        self.problems += other.problems
        self.notes += other.notes
        self.figures |= other.figures
        self.where, self.unprovable = self.where or other.where, self.unprovable or other.unprovable

    def excuse(self) -> None:
        """Of a strategy that is the plain training itself, problems are faults of the proof: blame no training."""
        problems = [*self.problems, *(problem for own in self.own.values() for problem in own.problems)]
        if not problems:
            return
        self.unprovable = (
            "the plain training and this one should be the same code, so that this is a fault of the proof, which we "
            f"ask you to report: {problems[0]}"
        )
        self.notes += problems[1:]
        for each in (self, *self.own.values()):
            each.problems, each.where = [], None

    @property
    def others(self) -> list[str]:
        """The problems that are no comparisons."""
        of_parts = {part.problem for part in self.parts}
        return [problem for problem in self.problems if problem not in of_parts]

    def of_batch(self, own: OwnBatch) -> Verdict:
        """The verdict of the steps at one of the runs' own batch sizes, which begins empty."""
        return self.own.setdefault(own, Verdict(self.gate))

    def as_dict(self) -> dict[str, Any]:
        """As it is written to verdict.json. `equivalent`: the shared parts and those of every own batch passed."""
        losses = [part.figure for part in self.parts if (part.trial, part.compared) == ("algorithm", "losses")]
        wrong = bool(self.problems or any(own.problems for own in self.own.values()))
        return {
            "gate": self.gate,
            "equivalent": not (self.unprovable or wrong),
            "unprovable": None if wrong else self.unprovable,
            "max_loss_difference": losses[0] if losses else None,
            **self._details(),
            "own_batches": [
                {
                    **asdict(own),
                    "equivalent": not (self.unprovable or self.problems or verdict.problems),
                    "unprovable": None if self.problems or verdict.problems else self.unprovable,
                }
                | verdict._details()
                for own, verdict in self.own.items()
            ],
        }

    def _details(self) -> dict[str, Any]:
        return {
            "parts": [part.as_dict() for part in self.parts],
            "problems": self.problems,
            "where": self.where,
            "notes": self.notes,
            **self.figures,
        }


def of_scripts(gate: str) -> dict[str, Any]:
    """The verdict on all scripts that are measured as they stand: nobody has looked at what they compute."""
    why = "a script is measured as it stands, and nothing of it is computed again"
    return {**Verdict(gate, unprovable=why).as_dict(), "strategy_source": None}


def failed_at(unfinished: Mapping[str, Any], problem: str) -> dict[str, Any]:
    """The verdict of a gate that failed at an own batch; `unfinished` is its verdict before that batch.

    What it has shown at smaller batches stands. Runs with a larger batch are not proven.
    """
    wrong = {"equivalent": False, "unprovable": None}
    verdict = {**unfinished, **wrong}
    own = Verdict(verdict["gate"], problems=[problem])
    entry = {**verdict.pop("at"), **wrong, **own._details()}
    return verdict | {"own_batches": [*unfinished["own_batches"], entry]}


def cannot_run(fault: Fault, task: str) -> str:
    """The problem of a strategy that raised and so has computed nothing else: the line, torch's words, and what helps.

    The line is the last one of the user's that led to it, in the folder of the `task`'s file or a job's copy of it;
    that of torch's own where none did.
    """
    frames = list(FRAME.finditer(fault.traceback))
    paths = [(frame, Path(frame["file"])) for frame in frames]
    folder = Path(task).parent if task else None
    own = [frame for frame, path in paths if OWN_TASK in path.parts or path.parent == folder]
    place = ""
    if last := (own or frames)[-1:]:
        place = f" {last[0]['file'] if own else Path(last[0]['file']).name}:{last[0]['line']}"
        place += f" ({last[0]['code']})" if last[0]["code"] and not last[0]["code"].startswith("raise ") else ""
        place += ":"
    row = look_up(fault.text or fault.error, "gates")  # torch's pipelines raise an error of their own, with shapes
    helps = f"; what helps: {row.remedy}" if row else ""
    said = fault.error if len(fault.error) <= MOST_LETTERS else f"{fault.error[:MOST_LETTERS].rstrip()} …"
    return f"{CANNOT_RUN}:{place} {said}{helps}"


def refusing(problems: Sequence[str]) -> str:
    """A verdict that refuses its setting, in words."""
    reasons = "; ".join(problems)
    return reasons if reasons.startswith(CANNOT_RUN) else f"NOT equivalent: {reasons}"
