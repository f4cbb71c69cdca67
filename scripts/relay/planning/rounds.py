"""The rounds in which repeats are measured, so that what a day brings is in no difference.

A setting that is added on a later day shares no round with those of earlier days. So the recommended one, which all
others are compared with, is the anchor: it gets as many further repeats as the new one has, in the same rounds.

A setting gets no further repeats where its first two were clearly slower than another's. It is measured against those
that cost no more than it: a slower one that is cheaper may be the answer. Only a setting that is proven may be the
faster one, so that nothing is given up for a strategy that trains something else. Both repeats of both settings have to
show it, so that one that was disturbed drops nothing.
"""

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from relay.base.clock import other_day
from relay.base.files import read_json_or, write_json
from relay.base.grouped import grouped
from relay.planning.inputs import Identities
from relay.planning.plan import Plan, PlannedSetting, output_place
from relay.run_folder import run_chain
from relay.run_folder.places import Places
from relay.run_folder.verdicts import of_batch, refuses
from relay.slurm import shapes
from relay.spec.labels import comparable, counted, flat, training_of
from relay.spec.run import OwnBatch, Run

ROUNDS = 2  # by which it is decided whether a setting is clearly slower
FILE = "anchors.json"  # by setting: its further repeats, and the new settings that it got them for


def read(results: Path) -> dict[str, dict[str, Any]]:
    """What earlier calls have planned; what is damaged is left out."""
    plans: dict[str, Any] = read_json_or(results / FILE, {})
    return {
        name: each
        for name, each in plans.items()
        if type(each) is dict and isinstance(each.get("repeats"), int) and isinstance(each.get("beside"), list)
    }


def write(results: Path, anchors: Mapping[str, Any]) -> None:
    """Keep it for later calls, which plan the same repeats."""
    if anchors and anchors != read(results):
        write_json(results / FILE, anchors)


def with_rounds(plan: Plan, identities: Identities, *, today: bool) -> Plan:
    """The plan with its runs: the repeats of all settings, in rounds. `today`: with the anchors of today."""
    planned = _with_runs(plan, read(plan.results) if plan.config.anchor else {}, identities)
    anchors, lines = with_anchors(planned) if today else ({}, [])
    if not lines:
        return planned
    return _with_runs(replace(plan, warnings=[*plan.warnings, *lines]), anchors, identities)


def _with_runs(plan: Plan, anchors: Mapping[str, Mapping[str, Any]], identities: Identities) -> Plan:
    runs, seed, repeats = [], plan.config.seed, Counter[str]()
    for planned, repeat in in_order(plan.settings, anchors, seed):
        repeats[planned.id] += 1
        digest = identities.of(planned.setting, seed=seed + repeat, repeat=repeat)
        own = {"id": f"{planned.setting.strategy.name}-{digest}", "setting_id": planned.id}
        runs.append(Run.of(planned.setting, **own, seed=seed + repeat, repeat=repeat))
    repeated = [replace(each, repeats=repeats[each.id]) for each in plan.settings]
    return replace(plan, runs=runs, settings=repeated, anchors=anchors)


def in_order(
    settings: Sequence[PlannedSetting], anchors: Mapping[str, Mapping[str, Any]], seed: int
) -> Iterator[tuple[PlannedSetting, int]]:
    """All repeats: round by round, each in random order. The anchors' further repeats stand in the first rounds."""
    order = random.Random(seed)
    more = {each.id: anchors[each.id]["repeats"] if each.id in anchors else 0 for each in settings}
    for place in range(max((each.repeats for each in settings), default=0)):
        repeated = [(each, place) for each in settings if place < each.repeats]
        for each in settings:
            own = each.repeats
            repeated += [(each, again) for again in range(own + place, own + more[each.id], own) if place < own]
        order.shuffle(repeated)
        yield from repeated


def with_anchors(plan: Plan) -> tuple[Mapping[str, Mapping[str, Any]], list[str]]:
    """The plan's anchors, with those of today: a recommended setting of an earlier day meets new ones.

    Also a line for each that is new.
    """
    best = _recommended(plan.results) if plan.config.anchor else []
    repeats = grouped(plan.runs, lambda run: run.setting_id) if best else {}
    compared = {name for each in plan.anchors.values() for name in each["beside"]}
    anchors, lines = {**plan.anchors}, []
    for its in filter(None, map(repeats.get, best)):
        new = [runs for name, runs in repeats.items() if name not in compared and _new(plan, its, runs)]
        if new and _earlier(plan, its):
            before, name = anchors.get(its[0].setting_id, {"repeats": 0, "beside": []}), its[0].setting_id
            more, beside = max(map(len, new)), [runs[0].setting_id for runs in new]
            anchors[name] = {"repeats": before["repeats"] + more, "beside": [*before["beside"], *beside]}
            lines.append(
                f"{plan.names[name]} is measured again, {counted(more, 'time')}, because settings that are new "
                "were not measured on its day (anchor: false leaves it out)"
            )
    return anchors, lines


def begun(plan: Plan, run: Run) -> bool:
    """Whether a run has trained."""
    return run_chain.begun(Places(plan.results, run.id).run) is not None


def _recommended(results: Path) -> list[str]:
    """The settings that the last answers recommend; none where they are damaged, or of another version."""
    with suppress(LookupError, TypeError):
        answers = read_json_or(results / "answer.json", {})["answers"]
        return [str(answer["recommended"]["setting"]) for answer in answers if answer["recommended"]]
    return []


def _new(plan: Plan, anchor: Sequence[Run], runs: Sequence[Run]) -> bool:
    """Whether a setting that trains the same as the anchor has not begun."""
    alike = comparable(flat(runs[0])) == comparable(flat(anchor[0]))
    return alike and not any(begun(plan, run) for run in runs)


def _earlier(plan: Plan, runs: Sequence[Run]) -> bool:
    """Whether all repeats of a setting were measured, on an earlier day."""
    places = [Places(plan.results, run.id).run for run in runs]
    starts = [read_json_or(place / "summary.json", {}).get("started_at") for place in places]
    now = datetime.now(UTC).isoformat()
    return all(start and other_day(start, now) for start in starts)


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
    reasons = {}
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
            ratio = min(best.speeds) / max(each.speeds)
            reasons[each.setting] = (
                f"after {counted(len(each.speeds), 'repeat')}: {best.name} was {ratio:.1f} times as fast, "
                f"and costs no more (drop_slower_than: {factor:g})"
            )
    return reasons


def dropped(plan: Plan) -> Plan:
    """The plan without the repeats of clearly slower settings, but for those that have begun."""
    factor = plan.config.drop_slower_than
    if not factor:
        return plan
    slower = clearly_slower(_firsts(plan), factor)
    kept = [run for run in plan.runs if run.repeat < ROUNDS or run.setting_id not in slower or begun(plan, run)]
    stays = {run.id for run in kept}
    left_out = {run.setting_id for run in plan.runs if run.id not in stays}
    counts = {setting: sum(run.setting_id == setting for run in kept) for setting in left_out}
    settings = [replace(each, repeats=counts.get(each.id, each.repeats)) for each in plan.settings]
    why = {setting: reason for setting, reason in slower.items() if setting in left_out}
    return replace(plan, runs=kept, settings=settings, dropped=why)


def _firsts(plan: Plan) -> list[First]:
    """The settings whose first repeats have finished and were timed."""
    speeds: dict[str, list[float]] = {}
    for run in plan.runs:
        summary = read_json_or(Places(plan.results, run.id).run / "summary.json", {})
        done = run.repeat < ROUNDS and summary.get("status") == "done"
        speed = summary.get("samples_per_second") if done else None
        if isinstance(speed, int | float) and 0 < speed < math.inf:  # else it was too short, or is damaged
            speeds.setdefault(run.setting_id, []).append(float(speed))
    return [
        First(
            setting=run.setting_id,
            name=plan.names[run.setting_id],
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
    verdict = read_json_or(plan.results / output_place("gate", plan.gate(run)), None)
    checked: Any = read_json_or(plan.results / output_place("spot_check", run.setting_id), None) or {}
    try:
        passed = verdict and not refuses(of_batch(verdict, OwnBatch.of(run)))
        return bool(passed) and all(each["status"] != "failed" for each in checked.get("runs", ()))
    except (KeyError, TypeError, AttributeError):  # of another version
        return False
