"""The plan of `snakemake selftest`: the config of its runs, and beside their gates those of further configs."""

import os
from collections.abc import Callable, Collection
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from relay.base.files import read_json
from relay.environments import overlay, versioned
from relay.environments.locks import lock_of
from relay.planning.plan import Plan, Skipped
from relay.process.one_gpu import VARIABLES
from relay.spec.labels import counted
from relay.spec.run import Gate, Preflight, Setting

TARGET = "selftest"
CONFIG = Path("config/selftest/runs.yaml")


def chosen(settings: Any, root: Path, targets: Collection[str]) -> bool:
    """Whether a call is a self-test, whose config then stands before the user's own.

    `settings` are Snakemake's of the config, `targets` the words of the command line.
    """
    if TARGET in targets:
        settings.configfiles = [root / CONFIG, *settings.configfiles]
    return root / CONFIG in settings.configfiles


def further(settings: Any, root: Path) -> list[Path]:
    """The configs of which a self-test takes the gates; none where the user tests a config of his own."""
    if settings.configfiles != [root / CONFIG]:
        return []
    return sorted(path for path in (root / CONFIG).parent.glob("*.yaml") if path != root / CONFIG)


def with_gates(plan: Plan, other: Plan) -> Plan:
    """The plan with another one's gates, with what they need, and with what that skips."""
    unmade = {name: _unmade(gate, plan.root) for name, gate in other.gates.items()} if plan.site is None else {}
    gates = {name: gate for name, gate in other.gates.items() if not unmade.get(name)}
    references = {other.reference_of[name]: other.references[other.reference_of[name]] for name in gates}
    looks = {name: other.preflight_of[name] for name in (*gates, *references)}
    looks = {**plan.preflight_of, **looks, **plan.preflight_of}  # in the plan's order, with its values
    all_preflights = {**other.preflights, **plan.preflights}
    return replace(
        plan,
        strategies=list(dict.fromkeys([*plan.strategies, *other.strategies])),
        skipped=[
            *plan.skipped,
            *other.skipped,
            *(Skipped(_setting(other.gates[name]), (why,)) for name, why in unmade.items() if why),
        ],
        gates={**plan.gates, **gates},
        references={**plan.references, **references, **plan.references},
        reference_of={**plan.reference_of, **{name: other.reference_of[name] for name in gates}},
        preflight_of=looks,
        preflights={look: all_preflights[look] for look in dict.fromkeys([*plan.preflights, *looks.values()])},
    )


def foremost(plan: Plan) -> list[Gate]:
    """Each strategy's first gate, which tells most of it: it is judged before further precisions, options and tasks."""
    firsts: dict[str, Gate] = {}
    for gate in plan.gates.values():
        firsts.setdefault(gate.strategy.name, gate)
    return list(firsts.values())


def _setting(gate: Gate) -> Setting:
    return Setting(**{each.name: getattr(gate, each.name) for each in fields(Setting)})


def _unmade(gate: Gate, root: Path) -> str:
    """Why a stack is not tested on this machine: making it takes minutes, which nobody has asked for."""
    place = overlay.place(lock_of(root, gate.stack))
    if place is None or (place / versioned.MARKER).exists():
        return ""
    return f"the environment of stack {gate.stack} is not made; `make gpu-check STACKS=all` makes it"


def pairs(plan: Plan) -> dict[str, Preflight]:
    """Where faults are planted: a pair of processes of each kind that is planned, by the preflight of its shape."""
    pair_of: dict[tuple[Any, ...], Preflight] = {}
    for look in sorted(plan.preflights.values(), key=lambda look: (len(look.node_needs), look.id)):
        shape = look.shape
        if look.stack == plan.stacks.plain and shape.world_size == 2 and shape.launcher in ("direct", "torchrun"):
            pair_of.setdefault((shape.nodes, shape.device, shape.backend), look)
    return {look.id: look for look in pair_of.values()}


def not_right(record: Path) -> str:
    """Why a part is done again whose record is there: it did not come out as it should; '' where it did."""
    return "" if (read_json(record) or {}).get("ok") else "tells of something wrong, which may be mended by now"


def described(plan: Plan, gpus: Callable[[], int]) -> str:
    """This machine, as far as the plan uses it: its GPUs, or its CPUs alone."""
    if any(gate.shape.device == "cuda" for gate in plan.gates.values()):
        count, ranks = gpus(), max(gate.shape.devices_per_node for gate in plan.gates.values())
        shared = f", which up to {ranks} ranks share: what works is told, their speed says nothing"
        named = counted(count, "GPU") if count else "GPUs"
        return f"this machine's {named}{shared * (count == 1 and VARIABLES in os.environ)}"
    return "this machine's CPUs, without a GPU"
