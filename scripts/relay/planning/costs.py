"""What a plan costs: the most that its jobs may take by their time limits, and what they have taken so far; and how
large it may become: a number of jobs, and a budget of device-hours.

A plan that may exceed its budget is refused, or loses its last repeats. They are left out as a whole, of all settings
alike, so that settings are compared as before, only with wider intervals. A repeat that has begun is kept. Two always
stay, because one has no interval.

A device-hour is an hour of a GPU. Of jobs without GPUs the CPU cores count: as many as a GPU counts as in the answer
(`Charging` in `relay.spec.site_blocks`) are one device; without GPUs at the site, each core is one.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from operator import add
from pathlib import Path

from relay.base.errors import UserError
from relay.base.files import read_json_or
from relay.planning.plan import Plan, PlannedSetting, output_place
from relay.planning.rounds import begun
from relay.run_folder import attempts, run_chain
from relay.run_folder.places import Places
from relay.run_folder.run_chain import Attempt
from relay.slurm import shapes
from relay.spec.labels import counted
from relay.spec.run import Specification
from relay.spec.setting import Shape
from relay.spec.site_blocks import Price

LEAST_REPEATS = 2


@dataclass(frozen=True)
class Cost:
    """A number of jobs, their hours of CPUs and of GPUs, and the hours of CPU cores that they are charged as."""

    jobs: int = 0
    cpu_hours: float = 0.0
    gpu_hours: float = 0.0
    charged_core_hours: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*map(add, astuple(self), astuple(other)))

    def device_hours(self, plan: Plan) -> float:
        """The same in device-hours."""
        return self.charged_core_hours / cores_of_a_device(plan)


def cores_of_a_device(plan: Plan) -> float:
    """The CPU cores that count as a device: as many as a GPU counts as or, where there are none, one."""
    gpus = plan.site.cores_per_gpu if plan.site else any(each.setting.shape.gpus_per_node for each in plan.settings)
    return plan.charging.cores_per_gpu if gpus else 1


def whole(plan: Plan) -> Cost:
    """The most that one try of each job may take, without settings of unknown speed."""
    return sum((_limit(plan, specification) for specification, _ in _jobs(plan)), Cost())


def left(plan: Plan) -> Cost:
    """The same of the jobs that are not done."""
    return sum((_limit(plan, job) for job, output in _jobs(plan) if not output.exists()), Cost())


def used(plan: Plan) -> Cost:
    """What the plan's jobs have taken so far, as far as it was recorded; with retries."""
    results = plan.results
    taken = [_taken(plan, run.shape, _trained_seconds(Places(results, run.id))) for run in plan.runs]
    for rule, each in _proofs(plan):
        seconds = _benchmark_seconds(results / "benchmarks" / rule / f"{each.id}.tsv")
        taken.append(_taken(plan, each.shape, seconds))
    return sum(taken, Cost())


def _jobs(plan: Plan) -> Iterator[tuple[Specification, Path]]:
    """All jobs of the plan, and the file of each that is there once it is done."""
    results, unmeasured = plan.results, {run.setting_id for run in plan.unmeasured}
    for rule, each in _proofs(plan):
        yield each, results / output_place(rule, each.id)
    for run in plan.runs:
        if run.setting_id not in unmeasured:
            for end in plan.segments(run):
                yield run, Places(results, run.id).state(end)


def _proofs(plan: Plan) -> Iterator[tuple[str, Specification]]:
    """What is planned beside the runs, with the name of its rule."""
    yield from (("reference", each) for each in plan.references.values())
    yield from (("gate", each) for each in plan.gates.values())
    yield from (("spot_check", each) for each in plan.spot_checks.values())
    if plan.site:
        yield from (("preflight", each) for each in plan.preflights.values())


def _limit(plan: Plan, specification: Specification) -> Cost:
    """What a job may take at most: its time limit."""
    job = plan.job(specification)
    minutes = job.minutes if job else plan.config.runtime_minutes
    return _taken(plan, specification.shape, 60 * minutes)


def _taken(plan: Plan, shape: Shape, seconds: float) -> Cost:
    taken, hours = shapes.charged(shape, plan.site, plan.config), seconds / 3600
    return Cost(int(hours > 0), hours * taken["cpus"], hours * taken["gpus"], hours * plan.charging.cores(taken))


def _trained_seconds(places: Places) -> float:
    """How long a run's jobs have been under way in all."""
    if (places.work / run_chain.CHAIN).exists() and (chain := run_chain.read(places.work)):
        return sum(_seconds(attempt, places.work) for attempt in chain.attempts)
    seconds = read_json_or(places.run / "summary.json", {}).get("allocated_seconds")
    return float(seconds) if isinstance(seconds, int | float) else 0.0  # else it is damaged


def _seconds(attempt: Attempt, work: Path) -> float:
    """How long an attempt was under way. Only one that runs, or was killed, has to be looked up in its records."""
    ended = attempt.ended
    if ended is None:
        records = attempts.read(work, attempt.number)
        ended = records.last_at if records else attempt.started
    return max(0.0, ended - attempt.started)


def _benchmark_seconds(path: Path) -> float:
    """What Snakemake has measured of a job; 0 where it has not."""
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            return sum(float(row["s"]) for row in csv.DictReader(stream, delimiter="\t"))
    except (OSError, ValueError, TypeError, KeyError):
        return 0.0


def kept_to(plan: Plan) -> Plan:
    """The plan without the repeats that its budget does not pay, where the config says so; otherwise, or where that
    does not do, it says what is wrong."""
    budget = plan.config.max_device_hours
    if budget is None or not left(plan).jobs or (wanted := _hours(plan)) <= budget:
        return plan  # also where retries have gone beyond it, and nothing is left to do but the report
    before = _rounds(plan)
    if plan.config.over_budget == "drop_repeats":
        least = max(LEAST_REPEATS, *(run.repeat + 1 for run in plan.runs if begun(plan, run)), 0)
        while _hours(plan) > budget and (last := _rounds(plan)) > least:
            plan = _with_repeats(plan, last - 1)
    after, hours = _rounds(plan), _hours(plan)
    spent = round(used(plan).device_hours(plan), 2)
    over = f"max_device_hours: {budget:g} is less than the {round(wanted, 2):g} that the jobs may take"
    if after < before:
        left_out = f"repeat {before}" if before - after == 1 else f"repeats {after + 1} to {before}"
        message = f"{over}: {left_out} of each setting left out (over_budget: drop_repeats)"
        plan = replace(plan, warnings=[*plan.warnings, message])
    if hours > budget:
        with_fewer = f" ({round(hours, 2):g} with {counted(after, 'repeat')})" if after < before else ""
        already = f"; {spent:g} of them were used so far" if spent else ""
        message = (
            f"config: {over} at most, by their time limits{with_fewer}{already}; lower runtime_minutes or repeats, "
            "compare fewer settings, or raise it"
        )
        plan = replace(plan, over_budget=message)
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
    return used(plan).device_hours(plan) + left(plan).device_hours(plan)


def _rounds(plan: Plan) -> int:
    return max((run.repeat for run in plan.runs), default=-1) + 1


def _with_repeats(plan: Plan, repeats: int) -> Plan:
    settings = [replace(each, repeats=min(each.repeats, repeats)) for each in plan.settings]
    return replace(plan, runs=[run for run in plan.runs if run.repeat < repeats], settings=settings)


def check_jobs(plan: Plan) -> None:
    """Raises UserError where the runs, cut into segments, make more jobs than `most_jobs`.

    Where segments are in minutes and no speed is measured yet, a run counts as one job.
    """
    jobs = {each.id: _segments_of(each, plan) for each in plan.settings}
    total, most = sum(jobs[run.setting_id] for run in plan.runs), plan.config.most_jobs
    if total <= most:
        return
    longest = max(jobs, key=lambda name: jobs[name])
    raise UserError(
        f"config: segment: {total:,} jobs are not allowed; allowed: at most {most:,} (most_jobs); "
        f"{len(plan.runs):,} runs have up to {jobs[longest]:,} segments each ({longest}); "
        "give longer segments or fewer epochs, or raise most_jobs"
    )


def _segments_of(each: PlannedSetting, plan: Plan) -> int:
    try:
        return math.ceil(each.setting.length.total_steps / plan.steps_in_a_job(each))
    except UserError:  # told where the segments are asked for
        return 1


def shown(plan: Plan) -> Iterator[str]:
    """The cost in lines: device-hours planned, used and left, the price, and the budget."""
    in_all, so_far, to_do = whole(plan), used(plan), left(plan)
    cores = cores_of_a_device(plan)
    on_cpus = any(not each.setting.shape.gpus_per_node for each in plan.settings)
    counted = f"; of jobs without GPUs, {cores:g} CPU cores count as a device" if on_cpus and cores > 1 else ""
    hours = [f"{round(cost.device_hours(plan), 2):g}" for cost in (in_all, so_far, to_do)]
    yield f"device-hours: at most {hours[0]} planned, {hours[1]} used so far, at most {hours[2]} to do{counted}"
    core_price = plan.charging.core_price
    if plan.site and core_price and in_all.jobs:
        prices = (core_price * cost.charged_core_hours for cost in (in_all, so_far, to_do))
        amounts = [f"{price:,.2f} {plan.site.price.currency}" for price in prices]
        yield "price: at most {} planned, {} used so far, at most {} to do ({})".format(*amounts, plan.site.file)
