"""How the answer is decided, and why it is not certain, whatever the intervals say: what repeats cannot show.

A neighbour that computes during all of one setting's repeats is no spread between them. Neither is a node on which all
of them ran, nor the day, nor what only the first second of a training has.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from relay.base.clock import other_day
from relay.base.grouped import grouped
from relay.comparison import choice
from relay.comparison.answer import DISTURBED, Answer, Certainty
from relay.comparison.candidates import Candidate, Doubt, charged, learns_more, rules_of
from relay.comparison.columns import Row, unit_of
from relay.comparison.inputs import Inputs
from relay.comparison.setting_result import SettingResult, setting_results, stated_goal
from relay.comparison.statistics import LEAST_REPEATS, geometric_mean, oddest
from relay.spec.labels import training_of

LONGEST_NAME = 60  # in letters, of what is trained in a file's name: a system allows 255 bytes at most
STEADY = 1.1  # times: so much faster or slower in its second half, a setting's timed steps are no steady state
LEAST_STEPS, LEAST_SECONDS = 50, 1.0  # of each repeat: what is timed for less may be a beginning, or chance
UNEVEN = 1.9  # times the variance that a place of its own for each repeat would bring; all on one: 2 or more
OTHERS = 0.1  # of the CPUs that a run has: so much of other programs is not overlooked


def answers(inputs: Inputs, rows: Sequence[Row]) -> list[Answer]:
    """The answer for all that is trained in the comparison. `rows` are those of `comparison_rows(inputs)`.

    Of one task's, that with the lowest test loss comes first: what has learnt most is what people train in the end.
    """
    results = setting_results(inputs, rows)
    alike = grouped(results, lambda each: each.row["trained"])
    decided = [_answer(members, inputs) for members in alike.values()]
    in_order = sorted(decided, key=lambda each: (each.task, each.test_loss))
    first = next((each for each in in_order if each.best), None)
    names = [re.sub(r"[^\w.]+", "-", each.trained).strip("-")[:LONGEST_NAME] for each in in_order]
    for place, (each, name) in enumerate(zip(in_order, names, strict=True)):
        file_name = name if names.count(name) == 1 else f"{name}-{place + 1}"  # as of width=1 and width=-1
        script = each.script if each is first else f"recommendation-{file_name}.sbatch"
        in_order[place] = replace(each, file_name=file_name, script=script)
    return in_order


def _answer(results: Sequence[SettingResult], inputs: Inputs) -> Answer:
    row = results[0].row
    rules = rules_of(inputs.margin, inputs.rules, [charged(each) for each in results if each.repeats])
    target_accuracy = inputs.config.get("target_accuracy")
    measured = [Candidate(x.row, x.label, x.repeats, rules) for x in results if choice.may_be_recommended(x.row)]
    several = len({training_of(each.run) for each in measured}) > 1
    goal = stated_goal(measured, target_accuracy) if several else None
    measured = [replace(each, goal=goal) for each in measured]
    held = [(each, choice.beyond(each)) for each in measured]
    candidates = [each for each, why in held if not why]
    answer = Answer(
        task=row["task"],
        trained=row["trained"],
        unit=unit_of(each.row for each in results),
        rules=rules,
        goal=goal,
        certainty="none",
        left_out=[*choice.left_out(results), *(why for _, why in held if why)],
        beyond=[each for each, why in held if why],
        only_on_cpu=choice.only_on_cpu(results),
    )
    if not candidates:
        return answer
    best = choice.chosen(candidates)
    rest = [each for each in candidates if each is not best]
    others = [choice.compared(best, each, candidates) for each in rest]
    next_best = choice.chosen(rest) if rest else None
    unsure = [each.relation for each in others if each.relation in ("unclear", "tie")]
    by_intervals: Certainty = max(unsure, default="winner" if others else "alone")  # in letters, too
    pairs = [(beside, each.other) for each in others for beside in (best, each.against)]
    reasons = [
        *([Doubt("another training", {})] if several and not goal else []),
        *([] if goal and target_accuracy else learns_more(best, candidates)),
        *neighbours(candidates),
        *places(pairs),
        *few_repeats(pairs),
        *near_limits(best, measured),
        *decisive(best, candidates),
        *hardly_timed(candidates),
    ]
    return replace(
        answer,
        best=best,
        certainty="likely" if by_intervals == "winner" and reasons else by_intervals,
        doubts=reasons,
        least_minutes=inputs.rules.get("least_minutes") or 0,
        site_flags=inputs.rules.get("site_flags") or (),
        others=others,
        runner_up=next((each for each in others if each.other is next_best), None),
    )


def near_limits(best: Candidate, measured: Sequence[Candidate]) -> list[Doubt]:
    """Which settings may be on the other side of a limit: by their interval, or by the repeats beside the best one's.

    A limit is one of real hours, so that a setting's own repeats decide. But they may have had a slow day. A single
    repeat may have been a disturbed one.
    """
    rules, doubts = best.rules, []
    for each in measured:
        # What never reaches the goal has no rate. What is slower at the same cost would not be chosen.
        if not each.reaches_goal or (each is not best and each.cost >= best.cost and each.rate <= best.rate):
            continue
        hours = [each.hours.low or each.hours.value / DISTURBED, each.hours.high or each.hours.value * DISTURBED]
        if not each.goal and not each.run.strategy.script:
            hours.append(best.hours.value / choice.speed_up(each, best))
        for limit, amounts, unit in (
            (rules.deadline_hours, hours, "h"),
            (rules.budget, [each.charge(one) for one in hours], rules.currency),
        ):
            if limit and min(amounts) <= limit < max(amounts):
                doubts.append(Doubt("limit", {"name": each.name, "amounts": amounts, "limit": limit, "unit": unit}))
    return doubts


def decisive(best: Candidate, candidates: Sequence[Candidate]) -> Iterator[Doubt]:
    """A repeat far from its setting's others, and what would be recommended without it, where that is another one."""
    for each in candidates:
        odd = oddest(list(each.rates.values()))
        if odd and len(each.rates) > 2 and not 1 / DISTURBED < odd[1] < DISTURBED:
            repeat = [repeat for repeat in each.repeats if repeat.run.repeat in each.rates][odd[0]]
            without = replace(each, repeats=[other for other in each.repeats if other is not repeat])
            instead = choice.chosen([without if other is each else other for other in candidates])
            if instead.run.setting_id != best.run.setting_id:
                yield Doubt("one repeat", {"name": each.name, "run": repeat.run, "instead": instead.name})
                return


def neighbours(settings: Sequence[SettingResult]) -> Iterator[Doubt]:
    """What else may have computed beside the runs, as their records tell it."""
    summaries = [(each, summary) for each in settings for summary in each.summaries]
    if any(summary.virtual for _, summary in summaries):
        yield Doubt("virtual", {})
    if any(summary.shares_nodes for _, summary in summaries):
        yield Doubt("shared nodes", {})
    if quotas := [summary.cpu_quota for _, summary in summaries if summary.cpu_quota]:
        yield Doubt("quota", {"cpus": min(quotas)})
    used = [
        (summary.other_cpus, summary.hosts)
        for each, summary in summaries
        if summary.other_cpus and summary.other_cpus > OTHERS * each.run.shape.cpus_per_node
    ]
    if used:
        cpus, hosts = max(used)
        several = len({host for _, summary in summaries for host in summary.hosts}) > 1
        yield Doubt("other programs", {"cpus": cpus, "hosts": hosts if several else []})


def few_repeats(pairs: Iterable[tuple[Candidate, Candidate]]) -> list[Doubt]:
    """The settings that are compared by two common repeats, whose one difference may be small by chance."""
    few = [pair for pair in pairs if 1 < choice.common_repeats(*pair) < LEAST_REPEATS]
    if not few:
        return []
    short = [[each for each in pair if len(each.rates) < LEAST_REPEATS] or pair for pair in few]
    names = list(dict.fromkeys(each.name for pair in short for each in pair))
    wanted = max(choice.repeats_for(LEAST_REPEATS, *pair) for pair in few)
    return [Doubt("few repeats", {"names": names, "wanted": wanted})]


def places(pairs: Iterable[tuple[SettingResult, SettingResult]]) -> list[Doubt]:
    """Where and when two settings were measured otherwise, so that this may be what makes them differ.

    Of those that are compared with each other, on one kind of device. Of several such pairs, the first is told.
    """
    alike = [(a, b) for a, b in pairs if a.run.shape.device == b.run.shape.device]
    doubts = (next(filter(None, (apart(*pair) for pair in alike)), None) for apart in (_hardware, _nodes, _days))
    return [each for each in doubts if each]


def _hardware(one: SettingResult, other: SettingResult) -> Doubt | None:
    names = [[each.device_name for each in setting.summaries if each.device_name] for setting in (one, other)]
    kinds = [sorted({*each}) for each in names]
    if not all(names) or kinds[0] == kinds[1]:
        return _unevenly(one, other, [[[name] for name in each] for each in names])
    return Doubt("hardware", {"one": one.name, "its": kinds[0], "other": other.name, "others": kinds[1]})


def _nodes(one: SettingResult, other: SettingResult) -> Doubt | None:
    return _unevenly(one, other, [[each.hosts for each in setting.summaries] for setting in (one, other)])


def _days(one: SettingResult, other: SettingResult) -> Doubt | None:
    """By the days that both have; where they have none, by all. A day is named by its first start."""
    starts = [sorted(each.started_at for each in setting.summaries if each.started_at) for setting in (one, other)]
    day_of: dict[str, str] = {}
    for before, start in pairwise(["", *sorted(starts[0] + starts[1])]):
        date = start[:10] if start[:10] not in day_of.values() else start[:16]  # else of two days with one date
        day_of[start] = day_of[before] if before and not other_day(before, start) else date
    days = [[day_of[start] for start in its] for its in starts]
    common = {*days[0]} & {*days[1]}
    if common or not all(days):
        return _unevenly(one, other, [[[day] for day in its if day in common] for its in days])
    (day, first), (later, second) = sorted(zip((its[0] for its in days), (one.name, other.name), strict=True))
    return Doubt("day", {"one": first, "day": day, "other": second, "later": later})


def _unevenly(one: SettingResult, other: SettingResult, places: Sequence[Sequence[Sequence[str]]]) -> Doubt | None:
    """The place at which two settings were measured most unevenly; None where their repeats tell what places change.

    `places` has those of each repeat, by setting. A place is in the settings' difference with the difference of its
    shares of their repeats. If each repeat had a place of its own, the repeats would tell the variance that this makes.
    It is compared with that.
    """
    counts = [Counter(place for repeat in its for place in repeat) for its in places]
    totals = [its.total() for its in counts]
    if not all(totals):
        return None
    apart = {each: counts[0][each] / totals[0] - counts[1][each] / totals[1] for each in sorted(counts[0] | counts[1])}
    if math.fsum(share**2 for share in apart.values()) <= UNEVEN * (1 / totals[0] + 1 / totals[1]):
        return None
    place = max(apart, key=lambda each: abs(apart[each]))
    there = [(sum(place in repeat for repeat in its), len(its)) for its in places]
    named = zip(there, (one.name, other.name), strict=True)
    ((most, repeats), name), ((least, _), beside) = sorted(named, key=lambda each: -each[0][0] / each[0][1])
    facts = {"one": name, "most": most, "repeats": repeats, "place": place, "least": least, "other": beside}
    return Doubt("unevenly", facts)


def hardly_timed(settings: Sequence[SettingResult]) -> list[Doubt]:
    """Which setting's repeat was timed for the shortest time, if that is too short; else which has no steady state.

    That is one which was faster or slower in the second half of its timed steps, in the mean of its repeats. Commands
    of the user's are left out of the former: what they count are not always steps.
    """
    times = [
        (steps * each.run.batch.global_batch_size / repeat.speed, steps, each.name)
        for each in settings
        if each.run.strategy.script is None
        for repeat in each.repeats
        if repeat.summary and repeat.speed and (steps := repeat.summary.measured_steps) is not None
    ]
    short = [(time, steps, name) for time, steps, name in times if steps < LEAST_STEPS or time < LEAST_SECONDS]
    if short:
        seconds, steps, name = min(short)
        return [Doubt("too short", {"name": name, "seconds": seconds, "steps": steps})]
    for each in settings:
        ratios = [half_ratio for summary in each.summaries if (half_ratio := summary.second_half_ratio)]
        if ratios and not 1 / STEADY < (ratio := geometric_mean(ratios).value) < STEADY:
            return [Doubt("unsteady", {"name": each.name, "ratio": ratio})]
    return []
