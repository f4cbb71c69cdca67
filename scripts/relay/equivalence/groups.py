"""Which gates the same processes judge, one after the other. Imports no torch: the driver asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import get_args

from relay.spec.requirements import BUILT_IN, NodeNeed
from relay.spec.run import Gate, Reference
from relay.spec.setting import Shape

FEWEST_TOGETHER = 4  # gates for which a group of processes is worth the time of its imports
MOST_TOGETHER = 8  # gates that are told of only when all are judged, and are judged anew where one ends the processes


def judged_along(proof: Gate | Reference, other: Gate) -> bool:
    """Whether the processes of a gate, or of a reference, may judge another gate afterwards.

    They need the same places in the same software; each proof computes in threads, and in a precision, of its own. Who
    compiles takes minutes, for which no others wait. A strategy with a service or a disk on its node has processes of
    its own. One's own file, of a strategy or a task, has to be in the snapshot that the processes run; what is built in
    is in each.
    """
    built_in = Path(other.strategy.file).resolve().parent == BUILT_IN
    own_node = {*proof.strategy.node_needs, *other.strategy.node_needs} & {*get_args(NodeNeed)}
    frozen = (built_in or proof.strategy.file == other.strategy.file) and other.task.file in ("", proof.task.file)

    def places(each: Gate | Reference) -> tuple[str, bool, Shape]:
        return each.stack, each.computation.compile, replace(each.shape, cpus_per_task=1, threads=1)

    return places(proof) == places(other) and frozen and not own_node


def in_groups(gates: Iterable[Gate], reference: Callable[[Gate], Reference], cpus: int) -> dict[str, str]:
    """By gate, the name of its group: gates that the same processes may judge, so that no two are judged at a time.

    On so many CPUs, groups compute side by side, and gates that may share processes are divided into as many, as long
    as some are left to each; earlier gates are judged first, and no group is large. On one CPU all jobs wait for each
    other: there a reference's process also judges what it may.
    """
    groups: dict[str, str] = {}
    alike: list[list[Gate]] = []
    for gate in gates:
        if cpus == 1 and judged_along(reference(gate), gate):
            groups[gate.id] = reference(gate).id
            continue
        group = next((each for each in alike if judged_along(each[0], gate) and judged_along(gate, each[0])), [])
        if not group:
            alike.append(group)
        group.append(gate)
    for group in alike:
        lanes = max(1, min(cpus // group[0].shape.cpus_per_node, len(group) // FEWEST_TOGETHER))
        turn = lanes * MOST_TOGETHER
        groups |= {gate.id: group[place // turn * turn + place % lanes].id for place, gate in enumerate(group)}
    return groups
