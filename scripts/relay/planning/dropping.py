"""Settings that get no further repeats, because their first two were clearly slower than another's.

A setting is measured against those that cost no more than it: a slower one that is cheaper may be the answer. Only a
setting that is proven may be the faster one, so that nothing is given up for a strategy that trains something else.
Both repeats of both settings have to show it, so that one that was disturbed drops nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from relay.base.files import read_json_or
from relay.equivalence.verdict import of_batch
from relay.planning import shapes, table
from relay.planning.plan import Plan
from relay.planning.rounds import begun
from relay.run_folder.places import Places
from relay.spec.labels import comparable, flat, training_of
from relay.spec.run import OwnBatch, Run

ROUNDS = 2  # by which it is decided


@dataclass(frozen=True, kw_only=True)
class First:
    """The first repeats of a setting: their samples per second, what it costs, and whether it is proven."""

    setting: str
    name: str
    trains: tuple[Any, ...]
    speeds: Sequence[float]
    cost: float
    proven: bool


def clearly_slower(firsts: Sequence[First], factor: float) -> dict[str, str]:
    """The settings that another was `factor` times as fast as, which trains the same and costs no more; why, by id."""
    found = {}
    for each in firsts:
        faster = [
            other
            for other in firsts
            if other.proven
            and other.trains == each.trains
            and other.cost <= each.cost
            and min(other.speeds) >= factor * max(each.speeds)
        ]
        if faster:
            best = max(faster, key=lambda other: min(other.speeds))
            found[each.setting] = (
                f"after {len(each.speeds)} repeats: {best.name} was {min(best.speeds) / max(each.speeds):.1f} times as "
                f"fast, and costs no more (drop_slower_than: {factor:g})"
            )
    return found


def dropped(plan: Plan) -> Plan:
    """The plan without the repeats of clearly slower settings, but for those that have begun."""
    factor = plan.config.drop_slower_than
    if not factor:
        return plan
    slower = clearly_slower(_firsts(plan, table.setting_names(plan)), factor)
    kept = [run for run in plan.runs if run.repeat < ROUNDS or run.setting_id not in slower or begun(plan, run)]
    stays = {run.id for run in kept}
    left_out = {run.setting_id for run in plan.runs if run.id not in stays}
    counts = {setting: sum(run.setting_id == setting for run in kept) for setting in left_out}
    settings = [replace(each, repeats=counts.get(each.id, each.repeats)) for each in plan.settings]
    why = {setting: told for setting, told in slower.items() if setting in left_out}
    return replace(plan, runs=kept, settings=settings, dropped=why)


def _firsts(plan: Plan, names: Mapping[str, str]) -> list[First]:
    """The settings whose first repeats have finished and were timed."""
    speeds: dict[str, list[float]] = {}
    for run in plan.runs:
        summary = read_json_or(Places(plan.results, run.id).run / "summary.json", None)
        done = run.repeat < ROUNDS and isinstance(summary, dict) and summary.get("status") == "done"
        speed = summary.get("samples_per_second") if done else None
        if isinstance(speed, int | float) and 0 < speed < math.inf:  # else it was too short, or is damaged
            speeds.setdefault(run.setting_id, []).append(float(speed))
    return [
        First(
            setting=run.setting_id,
            name=names[run.setting_id],
            trains=(*comparable(flat(run)), *training_of(run)),
            speeds=speeds[run.setting_id],
            cost=plan.charging.cores(shapes.charged(run.shape, plan.site, plan.config)),
            proven=_proven(plan, run),
        )
        for run in plan.runs
        if run.repeat == 0 and len(speeds.get(run.setting_id, ())) == ROUNDS
    ]


def _proven(plan: Plan, run: Run) -> bool:
    """Whether a run's gate has passed, and its spot check has not failed."""
    proofs = plan.results / "equivalence"
    verdict = read_json_or(proofs / "gates" / plan.gate(run) / "verdict.json", None)
    checked: Any = read_json_or(proofs / "spot_checks" / run.setting_id / "verdict.json", None) or {}
    try:
        passed = bool(verdict) and (of_batch(verdict, OwnBatch.of(run))["equivalent"] or verdict.get("unprovable"))
        return bool(passed) and all(each["status"] != "failed" for each in checked.get("runs", ()))
    except (KeyError, TypeError, AttributeError):  # of another version
        return False
