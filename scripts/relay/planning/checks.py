"""From a setting to the checks before it: its gate and that one's small batch, the reference, and the preflight."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

from relay.planning.settings import BACKENDS
from relay.planning.strategy_files import StrategyFile
from relay.process.cpus import useful_threads
from relay.spec.declare import bearing, reset
from relay.spec.requirements import BUILT_IN, NodeNeed, Requirements
from relay.spec.run import GROUPS, Gate, OwnBatch, Reference, Setting, SpotCheck, Training, changed
from relay.spec.setting import Batch, Computation, Feeding, Length, Shape, StrategySpec

Kind = TypeVar("Kind", bound=Training)
FEWEST_TOGETHER = 4  # gates for which a group of processes is worth the time of its imports
MOST_TOGETHER = 8  # gates that are told of only when all are judged, and are judged anew where one ends the processes
# The gate's long trainings use a batch of about this size. Runs of any batch size that is divided in the same way then
# share a gate, and most strategies share a reference, because 1, 2, 4, 8 and 16 divide it. A sample of many units, as a
# text of tokens, has a target for each: fewer samples are enough for a gradient, and each costs more.
PROOF_BATCH, PROOF_BATCH_OF_MANY_UNITS = 16, 8


def named(kind: type[Kind], setting: Setting, **more: Any) -> Kind:
    """A run, gate, reference or probe of the setting. `more` has its id, its seed and the other fields of `kind`."""
    return kind(**{each.name: getattr(setting, each.name) for each in fields(Setting)}, **more)


def gated(setting: Setting, steps: int, *, batch: int, learning_rate: float) -> Setting:
    """The setting as its gate trains it for `steps` steps at the proof batch `batch`.

    `learning_rate` is the one that is not scaled for a batch. Fields that do not bear on the
    gate have their defaults. Settings that differ in such fields only, or in their batch, therefore share a gate.
    """
    per_epoch = setting.dataset.train_count // batch
    return replace(
        setting,
        **{name: reset(getattr(setting, name), "gate") for name, _ in GROUPS if name != "length"}
        | {"batch": Batch(global_batch_size=batch)},
        task=replace(setting.task, learning_rate=learning_rate),
        length=Length(
            epochs=steps / per_epoch,
            steps_per_epoch=per_epoch,
            total_steps=steps,
            evaluate_every_steps=steps,
            warmup_steps=0,
        ),
    )


def own_batches(settings: Iterable[Setting]) -> tuple[OwnBatch, ...]:
    """The different batches of settings that share a gate, the smallest first."""
    return tuple(sorted({OwnBatch.of(setting) for setting in settings}))


def started_as(gate: Kind, setting: Setting) -> Kind:
    """The gate with the setting's CPUs, threads and launcher, which do not change what it computes.

    On one node nothing needs torch's own launchers, which take seconds to begin.
    """
    shape = setting.shape
    launcher = "direct" if shape.nodes == 1 and shape.launcher in ("torchrun", "spawn") else shape.launcher
    launched = replace(gate.shape, cpus_per_task=shape.cpus_per_task, threads=shape.threads, launcher=launcher)
    return replace(gate, shape=launched)


def with_cpus(reference: Reference, gates: Iterable[Gate], most: int | None) -> Reference:
    """The reference with the CPUs that the largest of its gates has on a node, as far as its batch can use them.

    They are at most `most`. On GPUs they are those of one of the gate's processes, because it uses one GPU.
    """
    on_gpu = reference.shape.device == "cuda"
    cpus = max(gate.shape.cpus_per_task if on_gpu else gate.shape.cpus_per_node for gate in gates)
    cpus = cpus if on_gpu else useful_threads(min(cpus, most or cpus), reference.batch.global_batch_size)
    return replace(reference, shape=replace(reference.shape, cpus_per_task=cpus, threads=cpus))


def referred(gate: Setting, stack: str) -> Setting:
    """The setting of a gate's reference: a plain loop in a single process, on one device of the same kind.

    `stack` is the software of a job without a strategy.
    """
    device = gate.shape.device
    return replace(
        gate,
        strategy=StrategySpec(name="reference", stack=stack),
        shape=Shape(device=device, backend=BACKENDS[device][0]),
        computation=Computation(precision=gate.computation.precision),
    )


def spot_checked(setting: Setting, cpus: int | None) -> Setting:
    """The setting of its spot check: a plain loop in a single process, with all CPUs that the run has on a node.

    `cpus` is how many this machine has; None on a cluster, whose nodes have those that the run asked for.
    """
    shape = setting.shape
    own = shape.cpus_per_node if shape.device == "cpu" else shape.cpus_per_task
    own = own if cpus is None else min(own, cpus)
    one = Shape(device=shape.device, cpus_per_task=own, threads=own, backend=BACKENDS[shape.device][0])
    return replace(setting, shape=one)


def checked_along(check: SpotCheck, other: SpotCheck) -> bool:
    """Whether the process of a spot check may check the runs of another setting: each with the CPUs of its node."""
    return (check.stack, check.shape.device) == (other.stack, other.shape.device)


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
    found: dict[str, str] = {}
    alike: list[list[Gate]] = []
    for gate in gates:
        if cpus == 1 and judged_along(reference(gate), gate):
            found[gate.id] = reference(gate).id
            continue
        group = next((each for each in alike if judged_along(each[0], gate) and judged_along(gate, each[0])), [])
        if not group:
            alike.append(group)
        group.append(gate)
    for group in alike:
        lanes = max(1, min(cpus // group[0].shape.cpus_per_node, len(group) // FEWEST_TOGETHER))
        turn = lanes * MOST_TOGETHER
        found |= {gate.id: group[place // turn * turn + place % lanes].id for place, gate in enumerate(group)}
    return found


def asked_of_nodes(setting: Setting) -> dict[str, Any]:
    """The values that a preflight depends on. Settings with equal values share a preflight."""
    groups = (getattr(setting, name) for name, _ in GROUPS)
    values = {name: value for group in groups for name, value in bearing(group, "job").items()}
    # Runs with special needs have a preflight of their own, so that other runs do not fail for these needs.
    special: dict[str, Any] = {"loader": setting.feeding.loader} if setting.feeding.loader != Feeding.loader else {}
    special |= {"node_needs": setting.strategy.node_needs} if setting.strategy.node_needs else {}
    return {**values, **special, "stack": setting.strategy.stack}


def slices(setting: Setting, needs: Requirements) -> int:
    """Into how many parts the samples of a batch are divided; 1 where the strategy does not divide them.

    One process with several devices gives each device a part. Otherwise each replica gets one.
    """
    if "samples" not in needs.divides:
        return 1
    shape = setting.shape
    if needs.processes == "one":
        return shape.devices
    return max(1, shape.world_size // needs.group_size(shape.world_size, setting.strategy.options))


def unit(setting: Setting, needs: Requirements) -> int:
    """The samples of which every global batch of the setting must be a multiple, so that it divides evenly.

    It divides into slices, and each slice into the parts that the strategy's options ask for.
    """
    options = setting.strategy.options
    return slices(setting, needs) * math.lcm(*(options.get(name, 1) for name in needs.whole_batches))


def proof_batch(setting: Setting, strategy: StrategyFile) -> int:
    """The global batch size of the gate's long trainings. It is divided as the setting's own, and is not larger."""
    needs, own = strategy.requirements, setting.batch.global_batch_size
    multiple = unit(setting, needs)
    least = PROOF_BATCH_OF_MANY_UNITS if setting.task.units_per_sample > 1 else PROOF_BATCH
    first = math.ceil(least / multiple) * multiple
    suitable = (
        batch for batch in range(first, own, multiple) if _fits(changed(setting, global_batch_size=batch), strategy)
    )
    return next(suitable, own)


def _fits(setting: Setting, strategy: StrategyFile) -> bool:
    """Whether the strategy's own needs, which may speak of the batch, are met."""
    needs = strategy.requirements
    group = needs.group_size(setting.shape.world_size, setting.strategy.options)
    stages = group * needs.stages_per_process(setting.strategy.options)
    return not any(need(setting, group, stages) for need in strategy.needs)
