"""What a plan's settings are proven by: gates, references, spot checks, and the looks at nodes that come before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from relay.base.grouped import grouped
from relay.environments import overlay
from relay.environments.locks import base
from relay.planning import checks, settings
from relay.planning.plan import Plan, PlannedSetting
from relay.planning.strategy_files import Identities, StrategyFile
from relay.spec import identity
from relay.spec.looked import Looked
from relay.spec.run import Gate, LibTorch, Preflight, Reference, Setting, SpotCheck
from relay.spec.script import NOT_PROVEN
from relay.spec.setting import Feeding


def proven(
    plan: Plan,
    strategies: Mapping[str, StrategyFile],
    identities: Identities,
    looked: Mapping[str, Looked],
    cpus: int | None,
) -> Plan:
    """The plan with each setting's gate, the gates' references, and the preflights of the settings' shapes.

    `cpus` are this machine's; None where the jobs run elsewhere.
    """
    found = _Proofs(plan, strategies, identities, looked, cpus)
    found.find()
    return replace(
        plan,
        gates=found.gates,
        references=found.references,
        preflights=found.preflights,
        spot_checks=found.spot_checks,
        libtorch=found.libtorch,
        gate_of=found.gate_of,
        reference_of=found.reference_of,
        preflight_of=found.preflight_of,
    )


class _Proofs:
    """What proves the settings of a plan, as it is found."""

    def __init__(
        self,
        plan: Plan,
        strategies: Mapping[str, StrategyFile],
        identities: Identities,
        looked: Mapping[str, Looked],
        cpus: int | None,
    ) -> None:
        self.plan, self.strategies, self.identities, self.looked, self.cpus = plan, strategies, identities, looked, cpus
        self.gates: dict[str, Gate] = {}
        self.references: dict[str, Reference] = {}
        self.preflights: dict[str, Preflight] = {}
        self.spot_checks: dict[str, SpotCheck] = {}
        self.libtorch: dict[str, LibTorch] = {}
        self.gate_of: dict[str, str] = {}
        self.reference_of: dict[str, str] = {}
        self.preflight_of: dict[str, str] = {}

    def find(self) -> None:
        plan = self.plan
        sharing: dict[str, list[PlannedSetting]] = {}
        for planned in plan.settings:
            self.preflight_of[planned.id] = self._preflight(planned.setting)
            if planned.setting.strategy.script:
                self.gate_of[planned.id] = NOT_PROVEN
                continue
            if planned.setting.spot_checks.any:
                again = checks.spot_checked(planned.setting, self.cpus)
                if plan.site is None:  # one process may check runs of several stacks
                    again = replace(again, strategy=replace(again.strategy, stack=plan.stacks.plain))
                self.spot_checks[planned.id] = checks.named(SpotCheck, again, id=planned.id, seed=plan.config.seed)
            shared = self._gated(planned.setting)
            sharing.setdefault(self._gate_identity(shared), []).append(planned)
        self._add_libtorch()
        for name, gates in grouped(map(self._add_gate, sharing.values()), self._add_reference).items():
            self.references[name] = checks.with_cpus(self.references[name], gates, self.cpus)
            # The least demanding preflight of its gates, so that a failed preflight of a larger shape does not stop it.
            preflights = [self.preflight_of[gate.id] for gate in gates]
            self.preflight_of[name] = min(preflights, key=lambda each: _demands(self.preflights[each]))

    def _add_libtorch(self) -> None:
        """Add, for each model, its first setting: the model is the same, whichever strategy has trained it."""
        plain_first = sorted(
            (planned for planned in self.plan.settings if not planned.setting.strategy.script),
            key=lambda planned: base(planned.setting.strategy.stack) != overlay.DRIVERS,
        )
        models = {settings.shown(planned.setting.task.options): planned for planned in reversed(plain_first)}
        for first in reversed(models.values()):
            alone = checks.spot_checked(first.setting, self.cpus)
            self.libtorch[first.id] = checks.named(LibTorch, alone, id=first.id, seed=self.plan.config.seed)

    def _gated(self, setting: Setting) -> Setting:
        """The setting as its gate trains it."""
        batch = checks.proof_batch(setting, self.strategies[setting.strategy.name])
        rate = next(iter(self.looked.values())).task.learning_rate  # options do not change it, a batch may
        return checks.gated(setting, self.plan.config.gate.steps, batch=batch, learning_rate=rate)

    def _gate_identity(self, gated: Setting, **more: Any) -> str:
        sources = {
            "strategy": self.identities.strategy_source[gated.strategy.name],
            "gate": self.identities.gate_source,
        }
        return self.identities.of(gated, sources=sources, seed=self.plan.config.gate.seed, **more)

    def _add_gate(self, members: Sequence[PlannedSetting]) -> Gate:
        """The gate that these settings share. It gets the shape of the largest one, and waits for its preflight."""
        gated, own = self._gated(members[0].setting), checks.own_batches(each.setting for each in members)
        name = f"{gated.strategy.name}-{self._gate_identity(gated, own_batches=own)}"

        def size(planned: PlannedSetting) -> tuple[int, int, tuple[int, ...]]:
            shape = planned.setting.shape
            demands = _demands(self.preflights[self.preflight_of[planned.id]])
            return -shape.cpus_per_task, -shape.threads, demands

        largest = min(members, key=size)
        gate = checks.named(Gate, gated, id=name, seed=self.plan.config.gate.seed, own_batches=own)
        gate = self.gates[name] = checks.started_as(gate, largest.setting)
        self.preflight_of[name] = self.preflight_of[largest.id]
        self.gate_of |= {planned.id: name for planned in members}
        return gate

    def _add_reference(self, gate: Gate) -> str:
        """The id of a gate's reference, which uses the same kind of device. The reference is added to the plan."""
        referred, seed = checks.referred(gate, self.plan.stacks.plain), self.plan.config.gate.seed
        digest = self.identities.of(referred, sources={"reference": self.identities.reference_source}, seed=seed)
        name = self.reference_of[gate.id] = f"{referred.task.name}-{digest}"
        self.references.setdefault(name, checks.named(Reference, referred, id=name, seed=seed))
        return name

    def _preflight(self, setting: Setting) -> str:
        """The id of the preflight of the setting's shape and stack. The preflight is added to the plan."""
        shape = setting.shape
        digest = identity.fingerprint(checks.asked_of_nodes(setting))
        name = f"{shape.device}-{shape.nodes}x{shape.processes_per_node}-{shape.launcher}-{digest}"
        known = self.preflights.get(name)
        # The most data workers show whether they share a core.
        if known is None or setting.feeding.data_workers > known.feeding.data_workers:
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
