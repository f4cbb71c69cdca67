"""What each time limit would mean for each setting: how many jobs, and what goodput; and the target `chain`."""

from collections.abc import Collection, Iterator
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from relay.base import typed
from relay.base.clock import duration
from relay.base.files import read_json_or
from relay.planning.plan import Plan, PlannedSetting
from relay.planning.requests import trained_before
from relay.planning.segments import ChainForecast, TooShort, forecast
from relay.run_folder import job_times
from relay.run_folder.job_times import JobTimes
from relay.run_folder.places import Places
from relay.spec.labels import counted
from relay.spec.script import Script
from relay.spec.setting import Shape

CHAIN = "chain"  # `snakemake chain`: one training alone, which goes on as jobs until it has ended
COLUMNS = ("time limit", "jobs", "steps of each", "in all", "start-up", "useful", "between", "saving")
NOTE = (
    "Chains are computed from measured times; a fifth of each time limit stays free. useful: steps (goodput); "
    "between: evaluations and checkpoints on the way; in all: without the queue"
)


def _chains(plan: Plan, shape: Shape, times: JobTimes, total_steps: int) -> list[ChainForecast | TooShort]:
    """The chain of a training under each time limit, shortest first.

    Limits beyond the shortest one in which a single job does all are left out: nothing is gained there.
    """
    chains: list[ChainForecast | TooShort] = []
    for minutes in limits(plan, shape):
        chains.append(forecast(times, total_steps, minutes))
        if isinstance(chains[-1], ChainForecast) and chains[-1].jobs == 1:
            break
    return chains


def limits(plan: Plan, shape: Shape) -> list[float]:
    """The time limits to choose from, in minutes, shortest first: the config's, else those of the site's partitions
    that jobs of this shape fit into, and `runtime_minutes`."""
    if plan.config.time_limits:
        return sorted({float(minutes) for minutes in plan.config.time_limits})
    shape_on_site = (shape.device, shape.gpus_per_node, shape.nodes)
    of_site = plan.site.time_limits(*shape_on_site, cpus_per_node=shape.cpus_per_node) if plan.site else []
    return sorted({float(minutes) for minutes in (plan.config.runtime_minutes, *of_site)})


def _of_command(plan: Plan, planned: PlannedSetting, script: Script) -> tuple[JobTimes, str, int] | None:
    """The same as `_times` for a command, which is known once it has ended.

    Where its jobs cannot go on from each other, all of it is one step.
    """
    ended = [each for each in trained_before(plan, planned) if each.summary]
    summaries = [each.summary for each in ended if each.summary]
    times = [each for run in ended for each in run.times]
    if not times:
        return None
    source = counted(len(times), "job")
    steps = max(each.steps_reached or 0 for each in summaries)
    if script.chained and steps:
        return job_times.mean(times), source, steps
    whole = sum(each.allocated_seconds for each in summaries) / len(summaries)
    source = f"{source}; it keeps no checkpoints by relay.chain, so that one job has to do all of it"
    return JobTimes(seconds_per_step=whole, startup_seconds=0.0, jobs=len(times)), source, 1


def _times(plan: Plan, planned: PlannedSetting) -> tuple[JobTimes, str, int] | None:
    """What to expect of a setting's jobs, where that is from, and its steps; None where nothing was measured."""
    if script := planned.setting.strategy.script:
        return _of_command(plan, planned, script)
    total = planned.setting.length.total_steps
    trained = trained_before(plan, planned)
    times = [each for run in trained for each in run.times]
    if times:
        alike = trained[0].run.setting_id != planned.id
        source = counted(len(times), "job")
        return job_times.mean(times), f"{source} of another length" if alike else source, total
    probed = typed.read(JobTimes, plan.results / "speeds" / f"{planned.id}.json")
    return (probed, "a short measurement", total) if probed else None


def shown(plan: Plan) -> Iterator[RenderableType]:
    """The forecasts for the terminal: a table for each setting; nothing where nothing was measured."""
    expected = [(planned, its) for planned in plan.settings if (its := _times(plan, planned))]
    for planned, (times, source, total) in expected:
        script = planned.setting.strategy.script
        chains = _chains(plan, planned.setting.shape, times, total)
        table = Table(box=None, pad_edge=False)
        for name in COLUMNS:
            table.add_column(name, justify="right")
        for each in chains:
            table.add_row(*_cells(each))
        yield Text(f"chain of {plan.names[planned.id]}, measured in {source}:")
        yield table
        for each in chains:
            if isinstance(each, TooShort):
                least = duration(60 * each.least_minutes)
                needed_for = "for all of it" if script and not script.chained else "for one step"
                yield Text(f"{each.limit_minutes:g} min is too short: a job needs at least {least} {needed_for}")
    if expected:
        yield Text(NOTE)


def _cells(each: ChainForecast | TooShort) -> list[str]:
    limit = f"{each.limit_minutes:g} min"
    if isinstance(each, TooShort):
        return [limit, *["–"] * (len(COLUMNS) - 1)]
    parts = (each.startup_seconds, each.useful_seconds, each.between_seconds, each.saving_seconds)
    shares = [f"{part / each.allocated_seconds:.0%}" for part in parts]
    return [limit, f"{each.jobs:,}", f"{each.steps_in_a_job:,}", duration(each.allocated_seconds), *shares]


def refusals(plan: Plan, targets: Collection[str]) -> list[str]:
    """Why this target of Snakemake cannot be made: the config has several settings, and nobody says which."""
    if CHAIN not in targets or len(plan.settings) == 1:
        return []
    return [
        f"target '{CHAIN}': trains one setting alone, and the config has {counted(len(plan.settings), 'setting')}; "
        "give a config with one, or name a strategy as the target"
    ]


def trained(plan: Plan, results: Path) -> Iterator[str]:
    """What was trained, and where it lies."""
    for run in plan.runs:
        if run.repeat:
            continue
        places = Places(results, run.id)
        summary = read_json_or(places.run / "summary.json", {})
        jobs = counted(int(summary.get("attempts") or 0), "job")
        if run.strategy.script:
            yield f"{run.strategy.name} has ended, in {jobs}: its folder is {places.folder}"
        else:
            yield f"run {run.id} has ended, in {jobs}; `snakemake export` writes its model"
