"""What a check finds, and the register of the checks: small functions from facts to a finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relay.base.grouped import grouped

SEVERITIES = ("stop", "warn", "note")


@dataclass(frozen=True)
class Finding:
    """What a check has found; its name comes from the register. Where it is `ok`, `found` says what was seen; else
    `remedy` says what to do about it.

    `severity` is "stop" (nothing is trained there), "warn" (it is, and slower or less safely) or "note".
    """

    check: str
    ok: bool
    severity: str
    found: str
    remedy: str = ""

    @property
    def line(self) -> str:
        """In one line."""
        return f"{self.check}: {self.found}" + (f"; {self.remedy}" if self.remedy else "")


def fine(observation: str) -> Finding:
    """Nothing is wrong."""
    return Finding("", True, "note", observation)


def stop(observation: str, remedy: str) -> Finding:
    """A fault with which nothing can be trained, or not what was declared."""
    return Finding("", False, "stop", observation, remedy)


def warn(observation: str, remedy: str) -> Finding:
    """A fault with which training works, slower or less safely."""
    return Finding("", False, "warn", observation, remedy)


def note(observation: str, remedy: str) -> Finding:
    """Worth knowing."""
    return Finding("", False, "note", observation, remedy)


class Facts:
    """The facts of one job, as the checks read them."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.run: Mapping[str, Any] = facts["run"]
        self.job: Mapping[str, Any] = facts["job"] or {}
        self.ranks: Sequence[Mapping[str, Any]] = facts["ranks"]
        self.allreduce: Sequence[Mapping[str, Any]] = facts["allreduce"]
        self.complete: bool = facts["complete"]  # every rank has joined: only then can one be missing
        self.pinned: Mapping[str, Sequence[str]] = facts.get("pinned", {})  # the lock's versions, by package

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
    def nodes(self) -> dict[str, list[Mapping[str, Any]]]:
        """The ranks by node."""
        return grouped(self.ranks, lambda rank: rank["node"])


def who(rank: Mapping[str, Any]) -> str:
    """A rank, in words."""
    return f"rank {rank['rank']} on {rank['node']}"


def listed(values: Sequence[Any], most: int = 4) -> str:
    """A short list, in words."""
    shown = ", ".join(map(str, values[:most]))
    return shown + (f" and {len(values) - most} more" if len(values) > most else "")


Check = Callable[[Facts], Finding | None]


@dataclass(frozen=True)
class Registered:
    """A check, and whether what it stops also keeps the ranks from joining each other."""

    name: str
    function: Check
    prevents_joining: bool


REGISTER: list[Registered] = []


def check(name: str, *, prevents_joining: bool = False) -> Callable[[Check], Check]:
    """Register a check. It returns None where it does not apply."""

    def register(function: Check) -> Check:
        REGISTER.append(Registered(name, function, prevents_joining))
        return function

    return register
