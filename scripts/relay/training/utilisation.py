"""What a run used of its CPUs and GPUs, from the looks at its nodes: figures for its summary.

Figures are of the time in which the attempts trained, evaluations and saves included: from their first record to their
last one. Needs no torch.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum
from pathlib import Path

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

    def joules(self) -> float | None:
        """The energy of all its GPUs, by their own counters, or else by their power; None where one tells neither."""
        each = [self._joules(place) for place in range(len(self.node.looks[0].gpus))]
        measured = [joules for joules in each if joules is not None]
        return fsum(measured) if measured and len(measured) == len(each) else None

    def _joules(self, place: int) -> float | None:
        energy = READINGS.index("energy_joules")
        counted = self.grown(lambda look: look.gpus[place][energy])
        if counted is not None:
            return None if self.node.looks[-1].gpus[place][energy] is None else counted  # it has stopped to count
        watts = [look.gpus[place][READINGS.index("power_watts")] for look in self.looks]
        power = mean([each for each in watts if each is not None])
        return None if power is None else power * self.seconds


def used(work: Path, attempts: Sequence[tuple[int, Records]], steps_per_epoch: int) -> dict[str, float]:
    """The figures of a summary, but for those that no look has told. `attempts` are their numbers and records."""
    looked_at = []  # of each attempt: the use of its nodes, and how many steps it trained
    for number, records in attempts:
        nodes = [node for node in samples.read(work, number) if node.looks] if records else []
        if nodes:
            looked_at.append(([Use(node, records.began, records.last_at) for node in nodes], len(records.losses)))
    if not looked_at:
        return {}
    uses = [use for its, _ in looked_at for use in its]
    had = fsum(use.node.cpus * use.seconds for use in uses)
    figures = {
        "cpu_utilisation": fsum(use.cpu_seconds for use in uses) / had if had > 0 else None,
        "other_cpus": _other_cpus(uses),
        "peak_node_memory_bytes": max(look.resident_bytes for use in uses for look in use.node.looks),
        **_of_gpus(uses),
        **_energy(looked_at, steps_per_epoch),
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


def _of_gpus(uses: Sequence[Use]) -> dict[str, float | None]:
    """Figures of all GPUs together; None for what no look has told."""
    looks = [look for use in uses for look in use.looks]
    figures = {name: mean([value for look in looks for value in look.readings(of)]) for name, of in MEANS.items()}
    peaks = (int(each) for look in looks for each in look.readings("memory_bytes"))
    return figures | {"peak_gpu_memory_bytes": max(peaks, default=None)}


def _energy(looked_at: Sequence[tuple[Sequence[Use], int]], steps_per_epoch: int) -> dict[str, float | None]:
    """What all GPUs took together, in the attempts of which all tell it; nothing where there is none."""
    measured: list[tuple[float, float, float]] = []
    for uses, trained in looked_at:
        by_node = [one for use in uses if (one := use.joules()) is not None]
        if len(by_node) == len(uses):
            measured.append((uses[0].seconds, trained, fsum(by_node)))
    if not measured:
        return {}
    seconds, steps, joules = (fsum(each) for each in zip(*measured, strict=True))
    return {
        "gpu_energy_joules": joules,
        "gpu_power_watts": joules / seconds if seconds > 0 else None,
        "gpu_energy_joules_per_epoch": joules * steps_per_epoch / steps if steps else None,
    }


def _at(series: Sequence[tuple[float, float]], moment: float) -> float:
    """A counter's value at a moment, on the line between two looks; beyond them, that of the nearest."""
    place = bisect_left(series, (moment,))
    if place in (0, len(series)):
        return series[min(place, len(series) - 1)][1]
    (t0, v0), (t1, v1) = series[place - 1], series[place]
    return v0 + (v1 - v0) * (moment - t0) / max(t1 - t0, 1e-9)
