"""What a plan's settings are proven by: gates, references, spot checks, and the looks at nodes that come before."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from relay.base.grouped import grouped
from relay.config.comparisons import options_key
from relay.config.strategies import StrategyFile, unit
from relay.environments import overlay
from relay.environments.locks import base
from relay.planning.inputs import Inputs
from relay.planning.plan import Plan, PlannedSetting
from relay.planning.settings import BACKENDS
from relay.process.cpus import useful_threads
from relay.spec import identity
from relay.spec.declare import bearing, reset
from relay.spec.recipe import Batch, Length
from relay.spec.run import GROUPS, Gate, LibTorch, OwnBatch, Preflight, Reference, Setting, SpotCheck, changed
from relay.spec.script import NOT_PROVEN
from relay.spec.setting import Computation, Feeding, Shape, StrategySpec

# The gate's long trainings use a batch of about this size. Runs of any batch size that is divided in the same way then
# share a gate, and most strategies share a reference, because 1, 2, 4, 8 and 16 divide it. A sample of many units, as a
# text of tokens, has a target for each: fewer samples are enough for a gradient, and each costs more.
PROOF_BATCH, PROOF_BATCH_OF_MANY_UNITS = 16, 8


def with_proofs(plan: Plan, inputs: Inputs) -> Plan:
    """The plan with each setting's gate, the gates' references, and the preflights of the settings' shapes."""
    seed, cpus = plan.config.gate.seed, inputs.here.cpus  # this machine's; None where the jobs run elsewhere
    own = [each for each in plan.settings if not each.setting.strategy.script]
    preflights, preflight_of = _preflights(plan.settings)
    gate_of = {each.id: NOT_PROVEN for each in plan.settings if each.setting.strategy.script}
    gates: dict[str, Gate] = {}
    sharing = grouped(own, lambda each: inputs.identities.of_gate(_gated(each, plan, inputs), seed=seed))
    for members in sharing.values():
        largest = min(members, key=lambda each: _size(each, preflights[preflight_of[each.id]]))
        gate = _gate(members, largest, plan, inputs)
        gates[gate.id], preflight_of[gate.id] = gate, preflight_of[largest.id]
        gate_of |= {each.id: gate.id for each in members}
    references: dict[str, Reference] = {}
    reference_of: dict[str, str] = {}

    def reference(gate: Gate) -> str:
        trained = referred(gate, plan.stacks.plain)
        name = f"{trained.task.name}-{inputs.identities.of_reference(trained, seed=seed)}"
        references.setdefault(name, Reference.of(trained, id=name, seed=seed))
        return name

    for name, of_it in grouped(gates.values(), reference).items():
        reference_of |= {gate.id: name for gate in of_it}
        references[name] = with_cpus(references[name], of_it, cpus)
        # The least demanding preflight of its gates, so that a failed preflight of a larger shape does not stop it.
        preflight_of[name] = min((preflight_of[gate.id] for gate in of_it), key=lambda each: _demands(preflights[each]))
    return replace(
        plan,
        gates=gates,
        references=references,
        preflights=preflights,
        spot_checks={each.id: _spot_check(each, plan, cpus) for each in own if each.setting.spot_checks.any},
        libtorch=_libtorch(own, plan, cpus),
        gate_of=gate_of,
        reference_of=reference_of,
        preflight_of=preflight_of,
    )


def _gated(planned: PlannedSetting, plan: Plan, inputs: Inputs) -> Setting:
    """The setting as its gate trains it: a few steps at the proof batch, at the learning rate of the task's own batch.

    Fields that do not bear on the gate have their defaults. Settings that differ in such fields only, or in their
    batch, therefore share a gate.
    """
    setting, steps = planned.setting, plan.config.gate.steps
    batch = proof_batch(setting, inputs.strategies[setting.strategy.name])
    per_epoch = setting.dataset.train_count // batch
    return replace(
        setting,
        **{name: reset(getattr(setting, name), "gate") for name, _ in GROUPS if name != "length"}
        | {"batch": Batch(global_batch_size=batch)},
        task=replace(setting.task, learning_rate=inputs.learning_rate),
        length=Length(
            epochs=steps / per_epoch,
            steps_per_epoch=per_epoch,
            total_steps=steps,
            evaluate_every_steps=steps,
            warmup_steps=0,
        ),
    )


def _gate(members: Sequence[PlannedSetting], largest: PlannedSetting, plan: Plan, inputs: Inputs) -> Gate:
    """The gate that these settings share. It is started as the largest of them is."""
    trained, seed = _gated(members[0], plan, inputs), plan.config.gate.seed
    own = tuple(sorted({OwnBatch.of(each.setting) for each in members}))
    name = f"{trained.strategy.name}-{inputs.identities.of_gate(trained, seed=seed, own_batches=own)}"
    return started_as(Gate.of(trained, id=name, seed=seed, own_batches=own), largest.setting)


def _size(planned: PlannedSetting, preflight: Preflight) -> tuple[int, int, tuple[int, bool, int]]:
    """Orders settings by what their jobs have of a node: most first, and then the one whose preflight asks least."""
    shape = planned.setting.shape
    return -shape.cpus_per_task, -shape.threads, _demands(preflight)


def _spot_check(planned: PlannedSetting, plan: Plan, cpus: int | None) -> SpotCheck:
    again = spot_checked(planned.setting, cpus)
    if plan.site is None:  # one process may check runs of several stacks
        again = replace(again, strategy=replace(again.strategy, stack=plan.stacks.plain))
    return SpotCheck.of(again, id=planned.id, seed=plan.config.seed)


def _libtorch(own: Sequence[PlannedSetting], plan: Plan, cpus: int | None) -> dict[str, LibTorch]:
    """For each model its first setting: the model is the same, whichever strategy has trained it."""
    plain_first = sorted(own, key=lambda planned: base(planned.setting.strategy.stack) != overlay.DRIVERS)
    firsts = [of_it[0] for of_it in grouped(plain_first, lambda each: options_key(each.setting.task.options)).values()]
    seed = plan.config.seed
    return {each.id: LibTorch.of(spot_checked(each.setting, cpus), id=each.id, seed=seed) for each in firsts}


def _preflights(settings: Iterable[PlannedSetting]) -> tuple[dict[str, Preflight], dict[str, str]]:
    """The preflights of the settings' shapes and stacks, and by setting which is its."""
    preflights: dict[str, Preflight] = {}
    preflight_of: dict[str, str] = {}
    for planned in settings:
        setting, shape = planned.setting, planned.setting.shape
        digest = identity.fingerprint(preflight_values(setting))
        name = f"{shape.device}-{shape.nodes}x{shape.processes_per_node}-{shape.launcher}-{digest}"
        preflight_of[planned.id] = name
        earlier = preflights.get(name)
        # The most data workers show whether they share a core.
        if earlier is None or setting.feeding.data_workers > earlier.feeding.data_workers:
            preflights[name] = Preflight(
                id=name,
                shape=shape,
                of_stack=setting.strategy.stack,
                place=setting.place,
                compile=setting.computation.compile,
                feeding=setting.feeding,
                node_needs=setting.strategy.node_needs,
            )
    return preflights, preflight_of


def _demands(preflight: Preflight) -> tuple[int, bool, int]:
    """How much a preflight asks of the nodes: needs of its strategy, those of its loader, the number of processes."""
    return len(preflight.node_needs), preflight.feeding.loader != Feeding.loader, preflight.shape.world_size


def started_as(gate: Gate, setting: Setting) -> Gate:
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
    single = Shape(device=shape.device, cpus_per_task=own, threads=own, backend=BACKENDS[shape.device][0])
    return replace(setting, shape=single)


def preflight_values(setting: Setting) -> dict[str, Any]:
    """The values that a preflight depends on. Settings with equal values share a preflight."""
    groups = (getattr(setting, name) for name, _ in GROUPS)
    values = {name: value for group in groups for name, value in bearing(group, "job").items()}
    # Runs with special needs have a preflight of their own, so that other runs do not fail for these needs.
    special: dict[str, Any] = {"loader": setting.feeding.loader} if setting.feeding.loader != Feeding.loader else {}
    special |= {"node_needs": setting.strategy.node_needs} if setting.strategy.node_needs else {}
    return {**values, **special, "stack": setting.strategy.stack}


def proof_batch(setting: Setting, strategy: StrategyFile) -> int:
    """The global batch size of the gate's long trainings. It is divided as the setting's own, and is not larger."""
    needs, own = strategy.requirements, setting.batch.global_batch_size
    multiple = unit(setting, needs)
    least = PROOF_BATCH_OF_MANY_UNITS if setting.task.units_per_sample > 1 else PROOF_BATCH
    first = math.ceil(least / multiple) * multiple
    smaller = range(first, own, multiple)
    return next((batch for batch in smaller if not any(strategy.unmet(changed(setting, global_batch_size=batch)))), own)
