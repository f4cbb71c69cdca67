"""What a run used of its CPUs and GPUs, from the looks at its nodes: figures for its summary.

Figures are of the time in which the attempts trained, evaluations and saves included: from their first record to their
last one. Needs no torch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum
from pathlib import Path
from typing import Any

from relay.run_folder import samples
from relay.run_folder.attempts import Records
from relay.run_folder.samples import READINGS, Look, Node, mean

# Means over all GPUs and looks, by their names in a summary.
MEANS = {
    "gpu_utilisation": "utilisation",
    "gpu_sm_activity": "sm_activity",
    "gpu_tensor_activity": "tensor_activity",
    "gpu_sm_clock_mhz": "sm_clock_mhz",
}


@dataclass(frozen=True)
class Use:
    """The looks at a node, and from when to when an attempt trained there."""

    node: Node
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def looks(self) -> list[Look]:
        """Those while it trained; of a shorter training the one after it."""
        later = [look for look in self.node.looks if look.time > self.began]
        return [look for look in later if look.time <= self.ended] or later[:1]

    def grown(self, counter: Callable[[Look], float | None]) -> float | None:
        """How much a counter has grown while it trained; None where it was not told."""
        series = [(look.time, value) for look in self.node.looks if (value := counter(look)) is not None]
        return _at(series, self.ended) - _at(series, self.began) if series else None

    @property
    def cpu_seconds(self) -> float:
        return self.grown(lambda look: look.cpu_seconds) or 0.0

    def joules(self) -> list[float]:
        """The energy of each GPU that tells it: by its own counter, or else by its power."""
        each = (self._joules(place) for place in range(len(self.node.looks[0].gpus)))
        return [joules for joules in each if joules is not None]

    def _joules(self, place: int) -> float | None:
        counted = self.grown(lambda look: look.gpus[place][READINGS.index("energy_joules")])
        if counted is not None:
            return counted
        watts = [look.gpus[place][READINGS.index("power_watts")] for look in self.looks]
        power = mean([each for each in watts if each is not None])
        return None if power is None else power * self.seconds


@dataclass(frozen=True)
class Seen:
    """An attempt that was looked at: its nodes, and how many steps it trained."""

    uses: Sequence[Use]
    steps: int


def used(work: Path, attempts: Sequence[tuple[int, Records]], steps_per_epoch: int) -> dict[str, Any]:
    """The figures of a summary; empty where nothing was looked at.

    `attempts` are their numbers and records.
    """
    seen = []
    for number, records in attempts:
        nodes = [node for node in samples.read(work, number) if node.looks] if records else []
        if nodes:
            seen.append(Seen([Use(node, records.began, records.last_at) for node in nodes], len(records.losses)))
    if not seen:
        return {}
    uses = [use for each in seen for use in each.uses]
    had = fsum(use.node.cpus * use.seconds for use in uses)
    figures = {
        "cpu_utilisation": fsum(use.cpu_seconds for use in uses) / had if had > 0 else None,
        "other_cpus": _other_cpus(uses),
        "peak_node_memory_bytes": max(look.resident_bytes for use in uses for look in use.node.looks),
        **_of_gpus(seen, uses, steps_per_epoch),
    }
    return {name: value for name, value in figures.items() if value is not None}


def _other_cpus(uses: Sequence[Use]) -> float | None:
    """The CPUs that other programs used while it trained, on the node where they used most."""
    counts = [
        (everything - use.cpu_seconds) / use.seconds
        for use in uses
        if use.seconds > 0 and (everything := use.grown(lambda look: look.node_cpu_seconds)) is not None
    ]
    return max(0.0, *counts) if counts else None


def _of_gpus(seen: Sequence[Seen], uses: Sequence[Use], steps_per_epoch: int) -> dict[str, float | None]:
    """Figures of all GPUs together; None for what no look has told."""
    looks = [look for use in uses for look in use.looks]
    figures = {name: mean([value for look in looks for value in look.readings(of)]) for name, of in MEANS.items()}
    figures["peak_gpu_memory_bytes"] = max(
        (each for look in looks for each in look.readings("memory_bytes")), default=None
    )
    told = [(each, joules) for each in seen if (joules := [one for use in each.uses for one in use.joules()])]
    seconds, steps = fsum(each.uses[0].seconds for each, _ in told), sum(each.steps for each, _ in told)
    if told:
        energy = fsum(one for _, joules in told for one in joules)
        figures["gpu_energy_joules"] = energy
        figures["gpu_power_watts"] = energy / seconds if seconds > 0 else None
        figures["gpu_energy_joules_per_epoch"] = energy * steps_per_epoch / steps if steps else None
    return figures


def _at(series: Sequence[tuple[float, float]], moment: float) -> float:
    """A counter's value at a moment, on the line between two looks; beyond them, that of the nearest."""
    place = bisect_left(series, (moment,))
    if place in (0, len(series)):
        return series[min(place, len(series) - 1)][1]
    (t0, v0), (t1, v1) = series[place - 1], series[place]
    return v0 + (v1 - v0) * (moment - t0) / max(t1 - t0, 1e-9)
