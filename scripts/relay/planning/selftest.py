"""The plan of `snakemake selftest`: the config of its runs, and beside their gates those of further configs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import fields
from pathlib import Path
from typing import Any

from relay.base.files import read_json
from relay.environments import overlay, versioned
from relay.environments.locks import lock_of
from relay.planning.plan import Plan, Skipped
from relay.process.one_gpu import VARIABLES
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


def add_gates(plan: Plan, other: Plan) -> None:
    """Add another plan's gates, with what they need, and what it skips."""
    plan.strategies += [name for name in other.strategies if name not in plan.strategies]
    plan.skipped += other.skipped
    for gate in other.gates.values():
        if plan.site is None and (reason := _unmade(gate, plan.root)):
            plan.skipped.append(Skipped(_setting(gate), (reason,)))
            continue
        reference = plan.reference_of[gate.id] = other.reference_of[gate.id]
        plan.gates[gate.id] = gate
        plan.references.setdefault(reference, other.references[reference])
        for name in (gate.id, reference):
            look = plan.preflight_of.setdefault(name, other.preflight_of[name])
            plan.preflights.setdefault(look, other.preflights.get(look) or plan.preflights[look])


def foremost(plan: Plan) -> list[Gate]:
    """Each strategy's first gate, which tells most of it: it is judged before further precisions, options and tasks."""
    found: dict[str, Gate] = {}
    for gate in plan.gates.values():
        found.setdefault(gate.strategy.name, gate)
    return list(found.values())


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
    found: dict[tuple[Any, ...], Preflight] = {}
    for look in sorted(plan.preflights.values(), key=lambda look: (len(look.node_needs), look.id)):
        shape = look.shape
        if look.stack == plan.stacks.plain and shape.world_size == 2 and shape.launcher in ("direct", "torchrun"):
            found.setdefault((shape.nodes, shape.device, shape.backend), look)
    return {look.id: look for look in found.values()}


def not_right(record: Path) -> str:
    """Why a part is done again whose record is there: it did not come out as it should; '' where it did."""
    return "" if (read_json(record) or {}).get("ok") else "tells of something wrong, which may be mended by now"


def described(plan: Plan, gpus: Callable[[], int]) -> str:
    """This machine, as far as the plan uses it: its GPUs, or its CPUs alone."""
    if any(gate.shape.device == "cuda" for gate in plan.gates.values()):
        count, ranks = gpus(), max(gate.shape.devices_per_node for gate in plan.gates.values())
        shared = f", which up to {ranks} ranks share: what works is told, their speed says nothing"
        if count == 1:
            return f"this machine's 1 GPU{shared * (VARIABLES in os.environ)}"
        return f"this machine's {count} GPUs" if count else "this machine's GPUs"
    return "this machine's CPUs, without a GPU"
