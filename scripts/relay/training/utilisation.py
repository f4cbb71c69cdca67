"""What a run used of its CPUs and GPUs, from the looks at its nodes: figures for its summary, and courses over time.

Figures are of the time in which the attempts trained, evaluations and saves included: from their first record to their
last one. Needs no torch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum
from pathlib import Path
from typing import Any

from relay.run_folder import samples
from relay.run_folder.attempts import Records
from relay.run_folder.samples import READINGS, Look, Node, mean

KEPT_LOOKS = 200  # points of each course: enough for a plot
# Means over all GPUs and looks, by their names in a summary.
MEANS = {
    "gpu_utilisation": "utilisation",
    "gpu_sm_activity": "sm_activity",
    "gpu_tensor_activity": "tensor_activity",
    "gpu_sm_clock_mhz": "sm_clock_mhz",
}
COURSES = ("cpu_utilisation", "gpu_utilisation", "gpu_power_watts")
Point = dict[str, float | None]


@dataclass(frozen=True)
class Attempt:
    """An attempt that was looked at: its nodes, from when to when it trained, and how many steps."""

    nodes: Sequence[Node]
    began: float
    ended: float
    steps: int

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    def looks(self, node: Node) -> list[Look]:
        """The looks at a node while it trained; of a shorter training the one after it."""
        later = [look for look in node.looks if look.time > self.began]
        return [look for look in later if look.time <= self.ended] or later[:1]

    def grown(self, node: Node, counter: Callable[[Look], float | None]) -> float | None:
        """How much a counter has grown while it trained; None where it was not told."""
        series = [(look.time, value) for look in node.looks if (value := counter(look)) is not None]
        return _at(series, self.ended) - _at(series, self.began) if series else None

    def joules(self) -> float | None:
        """The energy of all GPUs: by their own counters, or else by their power. None where neither is told."""
        energies = [
            joules
            for node in self.nodes
            for place in range(len(node.looks[0].gpus))
            if (joules := self._joules(node, place)) is not None
        ]
        return fsum(energies) if energies else None

    def _joules(self, node: Node, place: int) -> float | None:
        counted = self.grown(node, lambda look: look.gpus[place][READINGS.index("energy_joules")])
        if counted is not None:
            return counted
        watts = [look.gpus[place][READINGS.index("power_watts")] for look in self.looks(node)]
        power = mean([each for each in watts if each is not None])
        return None if power is None else power * self.seconds


def used(work: Path, attempts: Sequence[tuple[int, Records]], steps_per_epoch: int) -> dict[str, Any]:
    """The figures of a summary, and the `course`; empty where nothing was looked at.

    `attempts` are their numbers and records.
    """
    observed = [attempt for number, records in attempts if (attempt := _attempt(work, number, records))]
    if not observed:
        return {}
    looks = [look for each in observed for node in each.nodes for look in node.looks]
    figures = {
        "cpu_utilisation": _cpu_utilisation(observed),
        "other_cpus": _other_cpus(observed),
        "peak_node_memory_bytes": max(look.resident_bytes for look in looks),
        **_of_gpus(observed, steps_per_epoch),
    }
    return {name: value for name, value in figures.items() if value is not None} | {"course": _course(observed)}


def _attempt(work: Path, number: int, records: Records) -> Attempt | None:
    nodes = [node for node in samples.read(work, number) if node.looks]
    if not records or not nodes:
        return None
    return Attempt(nodes, records.began, records.last_at, len(records.losses))


def _cpu_utilisation(attempts: Sequence[Attempt]) -> float | None:
    pairs = [(each, node) for each in attempts for node in each.nodes]
    spent = fsum(each.grown(node, lambda look: look.cpu_seconds) or 0.0 for each, node in pairs)
    had = fsum(node.cpus * each.seconds for each, node in pairs)
    return spent / had if had > 0 else None


def _other_cpus(attempts: Sequence[Attempt]) -> float | None:
    """The CPUs that other programs used while it trained, on the node where they used most."""
    counts = [
        (everything - (each.grown(node, lambda look: look.cpu_seconds) or 0.0)) / each.seconds
        for each in attempts
        for node in each.nodes
        if each.seconds > 0 and (everything := each.grown(node, lambda look: look.node_cpu_seconds)) is not None
    ]
    return max(0.0, *counts) if counts else None


def _of_gpus(attempts: Sequence[Attempt], steps_per_epoch: int) -> dict[str, float | None]:
    """Figures of all GPUs together; None for what no look has told."""
    looks = [look for each in attempts for node in each.nodes for look in each.looks(node)]
    figures = {name: mean([value for look in looks for value in look.readings(of)]) for name, of in MEANS.items()}
    memory = [value for look in looks for value in look.readings("memory_bytes")]
    figures["peak_gpu_memory_bytes"] = max(memory, default=None)
    energies = [(each, joules) for each in attempts if (joules := each.joules()) is not None]
    seconds, steps = fsum(each.seconds for each, _ in energies), sum(each.steps for each, _ in energies)
    if energies:
        joules = fsum(joules for _, joules in energies)
        figures["gpu_energy_joules"] = joules
        figures["gpu_power_watts"] = joules / seconds if seconds > 0 else None
        figures["gpu_energy_joules_per_epoch"] = joules * steps_per_epoch / steps if steps else None
    return figures


def _course(attempts: Sequence[Attempt]) -> dict[str, list[float | None]]:
    """What all nodes used together, over the seconds since the first look: at most KEPT_LOOKS points, and a gap (None)
    between two attempts."""
    started = min(node.looks[0].time for node in attempts[0].nodes)
    points: list[Point | None] = []
    for each in attempts:
        points += [None] * bool(points)
        of_nodes = zip(*(list(_points(node)) for node in each.nodes), strict=False)
        points += [_together(at_once, started) for at_once in of_nodes]
    stride = -(-len(points) // KEPT_LOOKS) or 1
    kept = [_middle(points[place : place + stride]) for place in range(0, len(points), stride)]
    names = [name for name in COURSES if any(point[name] is not None for point in kept)]
    return {name: [_rounded(point[name]) for point in kept] for name in ("seconds", *names)}


def _points(node: Node) -> Iterator[Point]:
    """What a node used between two looks."""
    for before, look in pairwise(node.looks):
        passed = max(look.time - before.time, 1e-6)
        power = look.readings("power_watts")
        yield {
            "seconds": look.time,
            "cpu_utilisation": (look.cpu_seconds - before.cpu_seconds) / (node.cpus * passed),
            "gpu_utilisation": mean(look.readings("utilisation")),
            "gpu_power_watts": fsum(power) if power else None,
        }


def _together(points: Sequence[Point], started: float) -> Point:
    """All nodes at one time: the mean of what they used, and the sum of their power."""
    means = _means(points, COURSES)
    if means["gpu_power_watts"] is not None:
        means["gpu_power_watts"] *= len(points)
    return means | {"seconds": (points[0]["seconds"] or started) - started}


def _middle(points: Sequence[Point | None]) -> Point:
    """The mean of neighbouring points; all None where a gap is among them."""
    present = [point for point in points if point is not None]
    return _means(present if len(present) == len(points) else (), ("seconds", *COURSES))


def _means(points: Sequence[Point], names: Sequence[str]) -> Point:
    return {name: mean([value for point in points if (value := point[name]) is not None]) for name in names}


def _at(series: Sequence[tuple[float, float]], moment: float) -> float:
    """A counter's value at a moment, on the line between two looks; beyond them, that of the nearest."""
    place = bisect_left(series, (moment,))
    if place in (0, len(series)):
        return series[min(place, len(series) - 1)][1]
    (t0, v0), (t1, v1) = series[place - 1], series[place]
    return v0 + (v1 - v0) * (moment - t0) / max(t1 - t0, 1e-9)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
