"""The rounds in which repeats are measured, so that what a day brings is in no difference.

A setting that is added on a later day shares no round with those of earlier days. So the recommended one, which all
others are compared with, is the anchor: it gets as many further repeats as the new one has, in the same rounds.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from relay.base.clock import other_day
from relay.base.files import read_json_or, write_json
from relay.planning import table
from relay.planning.plan import Plan, PlannedSetting
from relay.run_folder import chain
from relay.run_folder.places import Places
from relay.spec.labels import comparable, flat
from relay.spec.run import Run

FILE = "anchors.json"  # by setting: its further repeats, and the new settings that it got them for


def read(results: Path) -> dict[str, dict[str, Any]]:
    """What earlier calls have planned; what is damaged is left out."""
    told: dict[str, Any] = {name: each for name, each in read_json_or(results / FILE, {}).items() if type(each) is dict}
    return {
        name: each
        for name, each in told.items()
        if isinstance(each.get("repeats"), int) and isinstance(each.get("beside"), list)
    }


def write(results: Path, anchors: Mapping[str, Any]) -> None:
    """Keep it for later calls, which plan the same repeats."""
    if anchors and anchors != read(results):
        write_json(results / FILE, anchors)


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


def further(plan: Plan) -> tuple[Mapping[str, Mapping[str, Any]], list[str]]:
    """The plan's anchors, with those of today: a recommended setting of an earlier day meets new ones. And a line for
    each of these."""
    best = _recommended(plan.results) if plan.config.anchor else []
    repeats: dict[str, list[Run]] = {}
    for run in plan.runs if best else ():
        repeats.setdefault(run.setting_id, []).append(run)
    known = {name for each in plan.anchors.values() for name in each["beside"]}
    anchors, told = {**plan.anchors}, []
    for its in filter(None, map(repeats.get, best)):
        new = [runs for name, runs in repeats.items() if name not in known and _new(plan, its, runs)]
        if new and _earlier(plan, its):
            before, name = anchors.get(its[0].setting_id, {"repeats": 0, "beside": []}), its[0].setting_id
            more, beside = max(map(len, new)), [runs[0].setting_id for runs in new]
            anchors[name] = {"repeats": before["repeats"] + more, "beside": [*before["beside"], *beside]}
            told.append(
                f"{table.setting_names(plan)[name]} is measured again, {more} times, because settings that are new "
                "were not measured on its day (anchor: false leaves it out)"
            )
    return anchors, told


def begun(plan: Plan, run: Run) -> bool:
    """Whether a run has trained."""
    return chain.begun(Places(plan.results, run.id).run) is not None


def _recommended(results: Path) -> list[str]:
    """The settings that the last answers recommend; none where they are damaged, or of another version."""
    with suppress(LookupError, TypeError):
        answers = read_json_or(results / "answer.json", {})["answers"]
        return [str(told["recommended"]["setting"]) for told in answers if told["recommended"]]
    return []


def _new(plan: Plan, anchor: Sequence[Run], runs: Sequence[Run]) -> bool:
    """Whether a setting that trains the same as the anchor has not begun."""
    alike = comparable(flat(runs[0])) == comparable(flat(anchor[0]))
    return alike and not any(begun(plan, run) for run in runs)


def _earlier(plan: Plan, runs: Sequence[Run]) -> bool:
    """Whether all repeats of a setting were measured, on an earlier day."""
    summaries: list[Any] = [read_json_or(Places(plan.results, run.id).run / "summary.json", None) for run in runs]
    starts = [summary.get("started_at") if isinstance(summary, dict) else None for summary in summaries]
    now = datetime.now(UTC).isoformat()
    return all(start and other_day(start, now) for start in starts)
