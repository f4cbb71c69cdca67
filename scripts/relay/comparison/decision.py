"""How the answer is decided, and what makes it uncertain that repeats cannot show.

Others that computed beside the runs, other places and times, and too short a time. A neighbour that computes during all
of one setting's repeats is no spread between them. Neither is a node on which all of them ran, nor the day, nor what
only the first second of a training has. So no answer from such runs is certain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from relay.base.clock import duration, other_day
from relay.base.grouped import grouped
from relay.comparison.answer import DISTURBED, Answer, Certainty
from relay.comparison.candidates import Candidate, charged, rules_of
from relay.comparison.choice import (
    Compared,
    LeftOut,
    beyond,
    chosen,
    compared,
    left_out,
    may_be_recommended,
    near_limits,
    only_on_cpu,
)
from relay.comparison.columns import Row, unit_of
from relay.comparison.inputs import Inputs, Record
from relay.comparison.measured import SettingResult, setting_results
from relay.comparison.quality import learns_more, stated_goal
from relay.comparison.statistics import geometric_mean, oddest
from relay.comparison.wording import listing, number
from relay.spec.job import Job
from relay.spec.labels import counted, training_of

ANOTHER = "the settings differ in batch, learning rate or precision, and speed does not compare such trainings"
STEADY = 1.1  # times: so much faster or slower in its second half, a setting's timed steps are no steady state
LEAST_STEPS, LEAST_SECONDS = 50, 1.0  # of each repeat: what is timed for less may be a beginning, or chance
OTHERS = 0.1  # of the CPUs that a run has: so much of other programs is not overlooked


def answers(inputs: Inputs, rows: Sequence[Row]) -> list[Answer]:
    """The answer for all that is trained in the comparison. `rows` are those of `comparison_rows(inputs)`.

    Of one task's, that with the lowest test loss comes first: what has learnt most is what people train in the end.
    """
    results = setting_results(inputs, rows)
    alike = grouped(results, lambda each: each.row["trained"])
    in_order = sorted(
        (_answer(members, inputs) for members in alike.values()), key=lambda each: (each.task, each.test_loss)
    )
    first = next((each for each in in_order if each.best), None)
    return [
        each if each is first else replace(each, script=f"recommendation-{each.file_name}.sbatch") for each in in_order
    ]


def _answer(results: Sequence[SettingResult], inputs: Inputs) -> Answer:
    row = results[0].row
    rules = rules_of(inputs.margin, inputs.rules, [charged(each) for each in results if each.records])
    target_accuracy = inputs.config.get("target_accuracy")
    measured = [Candidate(x.row, x.label, x.records, rules) for x in results if may_be_recommended(x.row)]
    several = len({training_of(each.run) for each in measured}) > 1
    goal = stated_goal(measured, target_accuracy) if several else None
    measured = [replace(each, goal=goal) for each in measured]
    candidates = [each for each in measured if not beyond(each)]
    over = [LeftOut(each.name, "beyond a limit", why) for each in measured if (why := beyond(each))]
    answer = Answer(
        task=row["task"],
        trained=row["trained"],
        unit=unit_of(each.row for each in results),
        rules=rules,
        goal=goal,
        certainty="none",
        left_out=[*left_out(results), *over],
        only_on_cpu=only_on_cpu(results),
    )
    if not candidates:
        return answer
    best = chosen(candidates)
    rest = [each for each in candidates if each is not best]
    others = [compared(best, each, candidates) for each in rest]
    next_best = chosen(rest) if rest else None
    answer = replace(
        answer,
        best=best,
        certainty=_certainty(others),
        neighbours=neighbours(candidates),
        places=places([(beside, each.other) for each in others for beside in (best, each.against)]),
        limits=near_limits(candidates),
        another=ANOTHER if several and not goal else "",
        learnt=None if goal and target_accuracy else learns_more(best, candidates),
        odd=_decisive(best, candidates),
        short=hardly_timed(candidates),
        job=_longest(best, inputs.rules.get("most_minutes") or 0),
        least_minutes=inputs.rules.get("least_minutes") or 0,
        site_flags=inputs.rules.get("site_flags") or (),
        others=others,
        runner_up=next((each for each in others if each.other is next_best), None),
    )
    return replace(answer, certainty="likely") if answer.certainty == "winner" and answer.doubts else answer


def _certainty(others: Sequence[Compared]) -> Certainty:
    """As the intervals tell it."""
    relations = {each.relation for each in others}
    if not others:
        return "alone"
    if "unclear" in relations:
        return "unclear"
    if "tie" in relations:
        return "tie"
    return "winner"


def _longest(best: Candidate, most_minutes: int) -> Job | None:
    """What the jobs of a setting asked for, with the most memory of them, and the longest time that one may ask for."""
    jobs = [record.job for record in best.records if record.job]
    if not jobs:
        return None
    memory_mb = max((job.memory_mb for job in jobs if job.memory_mb), default=None)
    return replace(jobs[0], memory_mb=memory_mb, minutes=max(most_minutes, *(job.minutes for job in jobs)))


def _decisive(best: Candidate, candidates: Sequence[Candidate]) -> tuple[str, Record, str] | None:
    """A repeat far from its setting's others, and what would be recommended without it, where that is another one."""
    for each in candidates:
        odd = oddest(list(each.rates.values()))
        if odd and len(each.rates) > 2 and not 1 / DISTURBED < odd.ratio < DISTURBED:
            record = [record for record in each.records if record.run.repeat in each.rates][odd.place]
            without = replace(each, records=[other for other in each.records if other is not record])
            recommended = chosen([without if other is each else other for other in candidates])
            if recommended.run.setting_id != best.run.setting_id:
                return each.name, record, recommended.name
    return None


def neighbours(settings: Sequence[SettingResult]) -> list[str]:
    """Each reason as a clause, as the records of these settings' runs tell it; none where they tell of none."""
    summaries = [summary for each in settings for summary in each.summaries]
    return [*_machines(summaries), *_programs(settings)]


def _machines(summaries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if any(each.get("virtual") for each in summaries):
        yield "the machine is virtual, and others may compute on its processors"
    if any(each.get("shares_nodes") for each in summaries):
        yield "other jobs may compute on the same nodes"
    if quotas := [float(each["cpu_quota"]) for each in summaries if each.get("cpu_quota")]:
        yield f"a quota limits the CPU time to that of {number(min(quotas), 2)} CPUs, as in a shared container"


def _programs(settings: Sequence[SettingResult]) -> Iterator[str]:
    used = [
        (summary["other_cpus"], summary["hosts"])
        for each in settings
        for summary in each.summaries
        if (summary.get("other_cpus") or 0) > OTHERS * each.run.shape.cpus_per_node
    ]
    if used:
        cpus, hosts = max(used)
        several = len({host for each in settings for summary in each.summaries for host in summary["hosts"]}) > 1
        yield f"other programs used up to {number(cpus, 2)} CPUs{f' of {listing(hosts)}' if several else ''} meanwhile"


def places(pairs: Iterable[tuple[SettingResult, SettingResult]]) -> list[str]:
    """In which places and when two settings were measured that have neither in common, each as a clause.

    Of those that are compared with each other, on one kind of device. Of several such pairs, the first is told.
    """
    alike = [(a, b) for a, b in pairs if a.run.shape.device == b.run.shape.device]
    clauses = (next(filter(None, (apart(*pair) for pair in alike)), "") for apart in (_hardware, _nodes, _days))
    return [clause for clause in clauses if clause]


def _hardware(one: SettingResult, other: SettingResult) -> str:
    names = [{each["device_name"] for each in setting.summaries if each.get("device_name")} for setting in (one, other)]
    if not all(names) or names[0] == names[1]:
        return ""
    return f"{one.name} ran on {listing(sorted(names[0]))}, and {other.name} on {listing(sorted(names[1]))}"


def _nodes(one: SettingResult, other: SettingResult) -> str:
    """All repeats of one setting on a node, and fewer than half of the other's there."""
    for setting, beside in ((one, other), (other, one)):
        its, others = ([frozenset(each["hosts"]) for each in some.summaries] for some in (setting, beside))
        for node in sorted(frozenset.intersection(*its)) if its and others else ():
            if 2 * (there := sum(node in hosts for hosts in others)) < len(others):
                return f"all repeats of {setting.name} ran on {node}, and {there or 'none'} of {beside.name} did"
    return ""


def _days(one: SettingResult, other: SettingResult) -> str:
    starts = [[each["started_at"] for each in setting.summaries] for setting in (one, other)]
    if not all(starts):
        return ""
    first, second = (one, other) if min(starts[0]) <= min(starts[1]) else (other, one)
    early, late = sorted(starts, key=min)
    if max(early) > min(late) or not other_day(max(early), min(late)):
        return ""
    return f"{first.name} was measured on {max(early)[:10]}, and {second.name} on {min(late)[:10]}"


def hardly_timed(settings: Sequence[SettingResult]) -> str:
    """Which setting's repeat was timed for the shortest time, if that is too short, or has no steady state; else ''.

    Commands of the user's are left out: what they count are not always steps.
    """
    times = [
        (steps * each.run.batch.global_batch_size / record.speed, steps, each.name)
        for each in settings
        if each.run.strategy.script is None
        for record in each.records
        if record.summary and record.speed and (steps := record.summary["measured_steps"]) is not None
    ]
    short = [(time, steps, name) for time, steps, name in times if steps < LEAST_STEPS or time < LEAST_SECONDS]
    if not short:
        return _unsteady(settings)
    time, steps, name = min(short)
    return f"{name} was timed for {duration(time)} ({counted(steps, 'step')}), which is too short"


def _unsteady(settings: Sequence[SettingResult]) -> str:
    """Which setting was faster or slower in the second half of its timed steps, in the mean of its repeats; else ''."""
    for each in settings:
        ratios = [half_ratio for summary in each.summaries if (half_ratio := summary.get("second_half_ratio"))]
        if ratios and not 1 / STEADY < (ratio := geometric_mean(ratios).value) < STEADY:
            return f"{each.name} was {number(ratio, 2)} times as fast in the second half of its timed steps"
    return ""
