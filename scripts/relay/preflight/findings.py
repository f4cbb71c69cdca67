"""What a check finds, and the register of the checks: small functions from facts to findings."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from relay.base.grouped import grouped
from relay.environments.locks import base

SEVERITIES = ("stop", "warn", "note")


@dataclass(frozen=True)
class Finding:
    """What is wrong, or worth knowing, and in `remedy` what to do about it. The check's name comes from the register.

    `severity` is "stop" (nothing is trained there), "warn" (it is, and slower or less safely) or "note".
    """

    check: str
    severity: str
    found: str
    remedy: str = ""

    @property
    def rank(self) -> int:
        """0 is the worst."""
        return SEVERITIES.index(self.severity)

    @property
    def line(self) -> str:
        """In one line."""
        return f"{self.check}: {self.found}" + (f"; {self.remedy}" if self.remedy else "")


def recorded(facts: Mapping[str, Any]) -> list[Finding]:
    """The findings in a file of facts."""
    return [Finding(**each) for each in facts["findings"]]


# Each takes what was observed, and the remedy. With the first nothing can be trained, or not what was declared; with
# the second training works, slower or less safely; the third is worth knowing.
stop, warn, note = (partial(Finding, "", severity) for severity in SEVERITIES)


class Facts:
    """The facts of one job, as the checks read them."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.run: Mapping[str, Any] = facts["run"]
        self.job: Mapping[str, Any] = facts["job"] or {}
        self.ranks: Sequence[Mapping[str, Any]] = facts["ranks"]
        self.allreduce: Sequence[Mapping[str, Any]] = facts["allreduce"]
        self.complete: bool = facts["complete"]  # every rank has joined: only then can one be missing

    @property
    def confined(self) -> bool:
        """Whether the site keeps a job to the CPUs and memory that it asked for."""
        return bool(self.job.get("confined"))

    @property
    def needs(self) -> Sequence[str]:
        """What the strategy requires of each node: libaio, mps, node_disk."""
        needed: Sequence[str] = self.run["node_needs"]
        return needed

    @property
    def compiles(self) -> bool:
        """Whether code is compiled for torch while the run trains."""
        return base(self.run["stack"]) == "deepspeed" or bool(self.run.get("compile"))

    @property
    def nodes(self) -> dict[str, list[Mapping[str, Any]]]:
        """The ranks by node."""
        return grouped(self.ranks, lambda rank: rank["node"])

    def telling(self, fact: str) -> list[Mapping[str, Any]]:
        """The ranks that came far enough to tell this."""
        return [rank for rank in self.ranks if rank.get(fact) is not None]

    @property
    def on_gpus(self) -> list[Mapping[str, Any]]:
        """The ranks that have told of torch, where the run is to use GPUs."""
        return self.telling("torch") if self.run["device"] == "cuda" else []


def who(rank: Mapping[str, Any]) -> str:
    """A rank, in words."""
    return f"rank {rank['rank']} on {rank['node']}"


def listed(values: Sequence[Any], most: int = 4) -> str:
    """A short list, in words."""
    shown = ", ".join(map(str, values[:most]))
    return shown + (f" and {len(values) - most} more" if len(values) > most else "")


Check = Callable[[Facts], Iterator[Finding]]


# Each check by its name, and whether what it stops also keeps the ranks from joining each other.
REGISTER: list[tuple[str, Check, bool]] = []


def check(name: str, *, prevents_joining: bool = False) -> Callable[[Check], Check]:
    """Register a check: of what it yields, the worst counts. It yields nothing where all is right."""

    def register(function: Check) -> Check:
        REGISTER.append((name, function, prevents_joining))
        return function

    return register
