"""Gates that one group of processes judges, one after the other: which may share processes, and what becomes of theirs.

Imports no torch: the driver asks.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import get_args

from relay.base.errors import UserError
from relay.base.files import read_json_or, write_json
from relay.datasets import verified
from relay.equivalence.verdict import ALONG
from relay.run_folder.places import dataset_folder
from relay.run_folder.snapshot import planned
from relay.spec.identity import source_digest, strategy_sources
from relay.spec.requirements import BUILT_IN, NodeNeed
from relay.spec.run import Gate
from relay.spec.setting import Shape

FEWEST_TOGETHER = 4  # gates for which a group of processes is worth the time of its imports
MOST_TOGETHER = 8  # gates that are told of only when all are judged, and are judged anew where one ends the processes


def judged_along(gate: Gate, other: Gate) -> bool:
    """Whether the processes of a gate may judge another gate afterwards.

    They need the same places in the same software; each gate computes in threads, and in a precision, of its own. Who
    compiles takes minutes, for which no others wait. A strategy with a service or a disk on its node has processes of
    its own. One's own file, of a strategy or a task, has to be in the snapshot that the processes run; what is built in
    is in each.
    """
    built_in = Path(other.strategy.file).resolve().parent == BUILT_IN
    own_node = {*gate.strategy.node_needs, *other.strategy.node_needs} & {*get_args(NodeNeed)}
    frozen = (built_in or gate.strategy.file == other.strategy.file) and other.task.file in ("", gate.task.file)

    def places(each: Gate) -> tuple[str, bool, Shape]:
        return each.stack, each.computation.compile, replace(each.shape, cpus_per_task=1, threads=1)

    return places(gate) == places(other) and frozen and not own_node


def in_groups(gates: Iterable[Gate], cpus: int) -> dict[str, str]:
    """By gate, the name of its group: gates that the same processes may judge, so that no two are judged at a time.

    On so many CPUs, groups compute side by side, and gates that may share processes are divided into as many, as long
    as some are left to each; earlier gates are judged first, and no group is large.
    """
    groups: dict[str, str] = {}
    alike: list[list[Gate]] = []
    for gate in gates:
        group = next((each for each in alike if judged_along(each[0], gate) and judged_along(gate, each[0])), [])
        if not group:
            alike.append(group)
        group.append(gate)
    for group in alike:
        lanes = max(1, min(cpus // group[0].shape.cpus_per_node, len(group) // FEWEST_TOGETHER))
        turn = lanes * MOST_TOGETHER
        groups |= {gate.id: group[place // turn * turn + place % lanes].id for place, gate in enumerate(group)}
    return groups


def beside(words: Sequence[str], equivalence: Path) -> dict[Path, Path]:
    """Specifications and references of gates, of the words GATE:REFERENCE on a command line."""
    named = (word.split(":") for word in words)
    gates, references = equivalence / "gates", equivalence / "references"
    return {gates / gate / "gate.json": references / reference / "reference.pt" for gate, reference in named}


def unjudged(beside: Mapping[Path, Path], results: Path, attempt: int) -> dict[Path, Path]:
    """Those of these gates that no other job has judged along, and whose reference and data are there.

    None in a retry, whose gate is to be alone.
    """
    if attempt > 1:
        return {}
    open_ = {spec: file for spec, file in beside.items() if not (spec.parent / ALONG).exists()}
    with_reference = {spec: file for spec, file in open_.items() if file.is_file()}
    datasets = {spec: dataset_folder(results, Gate.read(spec).dataset) for spec in with_reference}
    whole = {folder for folder in {*datasets.values()} if _is_whole(folder)}
    return {spec: file for spec, file in with_reference.items() if datasets[spec] in whole}


def _is_whole(dataset: Path) -> bool:
    with suppress(UserError):
        verified.check(dataset)
        return True
    return False


def completed(specs: Collection[Path], results: Path) -> bool:
    """Complete what was found of the gates that were judged along; whether the processes came to one of them."""
    for spec in specs:
        if verdict := read_json_or(spec.parent / ALONG, None):
            write_json(spec.parent / ALONG, verdict | source(Gate.read(spec), results))
    return any((spec.parent / ALONG).exists() for spec in specs)


def settle(results: Path) -> None:
    """What a driver does with the verdicts that a stopped call has left: they become their gates' own."""
    for path in results.glob(f"equivalence/gates/*/{ALONG}"):
        verdict, output = read_json_or(path, None), path.with_name("verdict.json")
        if verdict and "strategy_source" in verdict and not output.exists():
            path.rename(output)
        else:
            path.unlink()


def source(run: Gate, results: Path) -> dict[str, str]:
    name = "strategy_source"
    return {name: planned(results / "code", run).get(name) or source_digest(strategy_sources(Path(run.strategy.file)))}
