"""What a plan's settings are proven by: gates, references, spot checks, and the looks at nodes that come before."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from relay.base.grouped import grouped
from relay.config.expansion import options_key
from relay.config.strategies import StrategyFile
from relay.environments import overlay
from relay.environments.locks import base
from relay.planning.combinations import Combinations
from relay.planning.plan import Plan, PlannedSetting
from relay.planning.settings import BACKENDS, unit
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


class Proofs:
    """What proves the settings of a plan, as it is found. `combined` has the plan's combinations."""

    def __init__(self, plan: Plan, combined: Combinations) -> None:
        self.plan, self.combined, self.identities = plan, combined, combined.identities
        self.cpus = combined.here.cpus  # this machine's; None where the jobs run elsewhere
        self.gates: dict[str, Gate] = {}
        self.references: dict[str, Reference] = {}
        self.preflights: dict[str, Preflight] = {}
        self.spot_checks: dict[str, SpotCheck] = {}
        self.libtorch: dict[str, LibTorch] = {}
        self.gate_of: dict[str, str] = {}
        self.reference_of: dict[str, str] = {}
        self.preflight_of: dict[str, str] = {}

    def added(self) -> Plan:
        """The plan with each setting's gate, the gates' references, and the preflights of the settings' shapes."""
        self._find()
        return replace(
            self.plan,
            gates=self.gates,
            references=self.references,
            preflights=self.preflights,
            spot_checks=self.spot_checks,
            libtorch=self.libtorch,
            gate_of=self.gate_of,
            reference_of=self.reference_of,
            preflight_of=self.preflight_of,
        )

    def _find(self) -> None:
        plan = self.plan
        sharing: dict[str, list[PlannedSetting]] = {}
        for planned in plan.settings:
            self.preflight_of[planned.id] = self._preflight(planned.setting)
            if planned.setting.strategy.script:
                self.gate_of[planned.id] = NOT_PROVEN
                continue
            if planned.setting.spot_checks.any:
                again = spot_checked(planned.setting, self.cpus)
                if plan.site is None:  # one process may check runs of several stacks
                    again = replace(again, strategy=replace(again.strategy, stack=plan.stacks.plain))
                self.spot_checks[planned.id] = SpotCheck.of(again, id=planned.id, seed=plan.config.seed)
            shared = self._gated(planned.setting)
            sharing.setdefault(self._gate_identity(shared), []).append(planned)
        self._add_libtorch()
        for name, gates in grouped(map(self._add_gate, sharing.values()), self._add_reference).items():
            self.references[name] = with_cpus(self.references[name], gates, self.cpus)
            # The least demanding preflight of its gates, so that a failed preflight of a larger shape does not stop it.
            preflights = [self.preflight_of[gate.id] for gate in gates]
            self.preflight_of[name] = min(preflights, key=lambda each: _demands(self.preflights[each]))

    def _add_libtorch(self) -> None:
        """Add, for each model, its first setting: the model is the same, whichever strategy has trained it."""
        plain_first = sorted(
            (planned for planned in self.plan.settings if not planned.setting.strategy.script),
            key=lambda planned: base(planned.setting.strategy.stack) != overlay.DRIVERS,
        )
        models = {options_key(planned.setting.task.options): planned for planned in reversed(plain_first)}
        for first in reversed(models.values()):
            alone = spot_checked(first.setting, self.cpus)
            self.libtorch[first.id] = LibTorch.of(alone, id=first.id, seed=self.plan.config.seed)

    def _gated(self, setting: Setting) -> Setting:
        """The setting as its gate trains it."""
        batch = proof_batch(setting, self.combined.strategies[setting.strategy.name])
        rate = next(iter(self.combined.looked.values())).task.learning_rate  # options do not change it, a batch may
        return gated(setting, self.plan.config.gate.steps, batch=batch, learning_rate=rate)

    def _gate_identity(self, gated: Setting, **more: Any) -> str:
        sources = {
            "strategy": self.identities.strategy_source[gated.strategy.name],
            "gate": self.identities.gate_source,
        }
        return self.identities.of(gated, sources=sources, seed=self.plan.config.gate.seed, **more)

    def _add_gate(self, members: Sequence[PlannedSetting]) -> Gate:
        """The gate that these settings share. It gets the shape of the largest one, and waits for its preflight."""
        gated = self._gated(members[0].setting)
        own = tuple(sorted({OwnBatch.of(each.setting) for each in members}))
        name = f"{gated.strategy.name}-{self._gate_identity(gated, own_batches=own)}"

        def size(planned: PlannedSetting) -> tuple[int, int, tuple[int, ...]]:
            shape = planned.setting.shape
            demands = _demands(self.preflights[self.preflight_of[planned.id]])
            return -shape.cpus_per_task, -shape.threads, demands

        largest = min(members, key=size)
        gate = Gate.of(gated, id=name, seed=self.plan.config.gate.seed, own_batches=own)
        gate = self.gates[name] = started_as(gate, largest.setting)
        self.preflight_of[name] = self.preflight_of[largest.id]
        self.gate_of |= {planned.id: name for planned in members}
        return gate

    def _add_reference(self, gate: Gate) -> str:
        """The id of a gate's reference, which uses the same kind of device. The reference is added to the plan."""
        trained, seed = referred(gate, self.plan.stacks.plain), self.plan.config.gate.seed
        digest = self.identities.of(trained, sources={"reference": self.identities.reference_source}, seed=seed)
        name = self.reference_of[gate.id] = f"{trained.task.name}-{digest}"
        self.references.setdefault(name, Reference.of(trained, id=name, seed=seed))
        return name

    def _preflight(self, setting: Setting) -> str:
        """The id of the preflight of the setting's shape and stack. The preflight is added to the plan."""
        shape = setting.shape
        digest = identity.fingerprint(preflight_values(setting))
        name = f"{shape.device}-{shape.nodes}x{shape.processes_per_node}-{shape.launcher}-{digest}"
        earlier = self.preflights.get(name)
        # The most data workers show whether they share a core.
        if earlier is None or setting.feeding.data_workers > earlier.feeding.data_workers:
            self.preflights[name] = Preflight(
                id=name,
                shape=shape,
                of_stack=setting.strategy.stack,
                place=setting.place,
                compile=setting.computation.compile,
                feeding=setting.feeding,
                node_needs=setting.strategy.node_needs,
            )
        return name


def _demands(preflight: Preflight) -> tuple[int, bool, int]:
    """How much a preflight asks of the nodes: needs of its strategy, those of its loader, the number of processes."""
    return len(preflight.node_needs), preflight.feeding.loader != Feeding.loader, preflight.shape.world_size


def gated(setting: Setting, steps: int, *, batch: int, learning_rate: float) -> Setting:
    """The setting as its gate trains it for `steps` steps at the proof batch `batch`.

    `learning_rate` is the one that is not scaled for a batch. Fields that do not bear on the gate have their defaults.
    Settings that differ in such fields only, or in their batch, therefore share a gate.
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
