"""How large a plan becomes: counted before anything is expanded, and refused where it is too much."""

from __future__ import annotations

import math

from relay.base.errors import UserError
from relay.planning.comparisons import AXES, Comparison
from relay.planning.config import Config
from relay.planning.plan import Plan, PlannedSetting


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
