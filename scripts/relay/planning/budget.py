"""How large a plan may become: a number of jobs, and a budget of device-hours.

A plan that may exceed its budget is refused, or loses its last repeats.

Repeats are left out as a whole, of all settings alike and the last ones first. Each setting then keeps as many as the
others, and they are compared as before, only with wider intervals. A repeat that has begun is kept. Two always stay,
because one has no interval.
"""

from __future__ import annotations

import math
from dataclasses import replace

from relay.base.errors import UserError
from relay.config.comparisons import AXES, Comparison
from relay.config.config import Config
from relay.planning import costs, shapes
from relay.planning.plan import Plan, PlannedSetting
from relay.planning.rounds import begun
from relay.spec.price import Price

LEAST_REPEATS = 2


def kept_to(plan: Plan) -> Plan:
    """The plan without the repeats that its budget does not pay, where the config says so; otherwise, or where that
    does not do, it says what is wrong."""
    budget = plan.config.max_device_hours
    if budget is None or not costs.left(plan).jobs or (wanted := _hours(plan)) <= budget:
        return plan  # also where retries have gone beyond it, and nothing is left to do but the report
    before = _rounds(plan)
    if plan.config.over_budget == "drop_repeats":
        while _hours(plan) > budget and (last := _rounds(plan)) > LEAST_REPEATS and not _has_begun(plan, last - 1):
            plan = _with_repeats(plan, last - 1)
    after, hours = _rounds(plan), _hours(plan)
    spent = round(costs.used(plan).device_hours(plan), 2)
    asked = f"max_device_hours: {budget:g} is less than the {round(wanted, 2):g} that the jobs may take"
    if after < before:
        left_out = f"repeat {before}" if before - after == 1 else f"repeats {after + 1} to {before}"
        told = f"{asked}: {left_out} of each setting left out (over_budget: drop_repeats)"
        plan = replace(plan, warnings=[*plan.warnings, told])
    if hours > budget:
        with_fewer = f" ({round(hours, 2):g} with {after} repeats)" if after < before else ""
        already = f"; {spent:g} of them were used so far" if spent else ""
        told = (
            f"config: {asked} at most, by their time limits{with_fewer}{already}; lower runtime_minutes or repeats, "
            "compare fewer settings, or raise it"
        )
        plan = replace(plan, over_budget=told)
    return plan


def check_currency(plan: Plan) -> None:
    """Raises UserError where `answer.budget` is in a site's currency, and a run has no price there."""
    budget, price = plan.config.answer.budget, plan.site.price if plan.site else Price()
    if not budget or price == Price(currency=price.currency):
        return
    for run in plan.runs:
        if price.of(shapes.charged(run.shape, plan.site, plan.config)) is None:
            missing = "cpu_hour" if price.gpu_hour else "gpu_hour"
            raise UserError(
                f"config: answer.budget: {budget:g} is in {price.currency}, and the site has no price for "
                f"strategy {run.strategy.name}; give price.{missing} in the site's file, or compare one kind of device"
            )


def _hours(plan: Plan) -> float:
    """What the plan may cost in all: what its jobs have taken, and the time limits of those to do."""
    return costs.used(plan).device_hours(plan) + costs.left(plan).device_hours(plan)


def _rounds(plan: Plan) -> int:
    return max((run.repeat for run in plan.runs), default=-1) + 1


def _has_begun(plan: Plan, repeat: int) -> bool:
    return any(begun(plan, run) for run in plan.runs if run.repeat == repeat)


def _with_repeats(plan: Plan, repeats: int) -> Plan:
    settings = [replace(each, repeats=min(each.repeats, repeats)) for each in plan.settings]
    return replace(plan, runs=[run for run in plan.runs if run.repeat < repeats], settings=settings)


def check_runs(config: Config) -> None:
    """Raises UserError where the axes make more runs than `most_jobs`."""
    counts = [_factors(comparison, config.repeats) for comparison in config.comparisons]
    total = sum(math.prod(factors.values()) for factors in counts)
    if total <= config.most_jobs:
        return
    index = max(range(len(counts)), key=lambda i: math.prod(counts[i].values()))
    product = " × ".join(f"{count:,} {name}" for name, count in counts[index].items() if count > 1)
    raise UserError(
        f"config: comparisons: {total:,} runs are not allowed; allowed: at most {config.most_jobs:,} (most_jobs); "
        f"the most are of comparisons[{index}], {config.comparisons[index].strategy}: "
        f"{product} = {math.prod(counts[index].values()):,}; give fewer values, or raise most_jobs"
    )


def check_jobs(plan: Plan) -> None:
    """Raises UserError where the runs, cut into segments, make more jobs than `most_jobs`.

    Where segments are in minutes and no speed is measured yet, a run counts as one job.
    """
    jobs = {planned.id: _jobs(planned, plan) for planned in plan.settings}
    total, most = sum(jobs[run.setting_id] for run in plan.runs), plan.config.most_jobs
    if total <= most:
        return
    longest = max(jobs, key=lambda name: jobs[name])
    raise UserError(
        f"config: segment: {total:,} jobs are not allowed; allowed: at most {most:,} (most_jobs); "
        f"{len(plan.runs):,} runs have up to {jobs[longest]:,} segments each ({longest}); "
        "give longer segments or fewer epochs, or raise most_jobs"
    )


def _jobs(planned: PlannedSetting, plan: Plan) -> int:
    try:
        return math.ceil(planned.setting.length.total_steps / plan.steps_in_a_job(planned))
    except UserError:  # told where the segments are asked for
        return 1


def _factors(comparison: Comparison, repeats: int) -> dict[str, int]:
    """What multiplies to the number of a comparison's runs: values of each axis and option, and repeats."""
    values = {name: getattr(comparison, name) for name in AXES}
    values |= {f"options.{name}": given for name, given in comparison.options.items()}
    # A value that is given twice is one setting; 1, 1.0 and true are not the same.
    counts = {name: len({(type(value), value) for value in given}) for name, given in values.items()}
    return {**counts, "repeats": comparison.repeats or repeats}
