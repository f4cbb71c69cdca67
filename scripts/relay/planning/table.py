"""The plan as a table for the terminal: jobs, processors, and the hours that they may cost at most."""

from collections.abc import Collection, Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

from relay.base.plain_text import plain_text
from relay.planning import chains, costs, requests
from relay.planning.plan import Plan
from relay.spec.labels import counted, described, flat, setting_labels
from relay.spec.run import Preflight, Run, Setting, setting_fields
from relay.spec.setting import Shape

ONE = ("1", "1", "1")  # run, segment, job


def render(plan: Plan, width: int = 80) -> str:
    """The table, the totals, the skipped settings with reasons, and the warnings, in lines of at most `width`."""
    table = Table(box=None, pad_edge=False)
    table.add_column("what", overflow="fold")
    for name in ("runs", "segments", "jobs", "steps", "CPUs", "GPUs"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in _rows(plan):
        table.add_row(*row)
    lines = [
        _totals(plan),
        *costs.shown(plan),
        *plan.stacks.shown(plan.root),
        *(start.line for start in requests.expected(plan)),
        *requests.shown(plan),
        *skipped(plan),
        *(f"dropped: {plan.names[name]} {why}" for name, why in plan.dropped.items()),
        *(f"warning: {warning}" for warning in plan.warnings),
    ]
    forecasts = chains.shown(plan)
    return plain_text(table, *forecasts, *(Text(line) for line in lines), width=width) + "\n"


def _rows(plan: Plan) -> Iterator[list[str]]:
    """Rows of preflights, references and gates, with one job each, then of the settings, with all their repeats, each
    with its spot check."""
    labels = _labels(plan)
    for look in plan.preflights.values() if plan.site else ():
        yield _row(f"preflight {labels[look.id]}", look.shape, *ONE, "–")
    for reference in plan.references.values():
        yield _row(f"reference {labels[reference.id]}", reference.shape, *ONE, str(reference.length.total_steps))
    for gate in plan.gates.values():
        name = f"gate of {gate.strategy.name} {labels[gate.id]}"
        yield _row(name, gate.shape, *ONE, str(gate.length.total_steps))
    unmeasured = {run.setting_id for run in plan.unmeasured}
    first = {run.setting_id: run for run in plan.runs if run.repeat == 0}
    for planned in plan.settings:
        setting, name = planned.setting, f"{planned.setting.strategy.name} {plan.labels[planned.id]}"
        segments = 0 if planned.id in unmeasured else len(plan.segments(first[planned.id]))
        jobs = [str(planned.repeats), str(segments or "?"), str(segments * planned.repeats or "?")]
        steps = "–" if setting.strategy.script else str(setting.length.total_steps)
        yield _row(name.rstrip() + _request(plan, first[planned.id]), setting.shape, *jobs, steps)
        if spot_check := plan.spot_checks.get(planned.id):
            yield _row(f"spot check of {name}", spot_check.shape, *ONE, "–")


def _labels(plan: Plan) -> dict[str, str]:
    """What tells each preflight, reference and gate from the others, by id."""
    rows = (
        {name: _looked_at(each) for name, each in plan.preflights.items()},
        {name: _proven(each) for name, each in plan.references.items()},
        {name: _proven(each) for name, each in plan.gates.items()},
    )
    labels: dict[str, str] = {}
    for of_kind in rows:
        labels |= zip(of_kind, setting_labels([*of_kind.values()]), strict=True)
    return labels


def _row(name: str, shape: Shape, *counts: str) -> list[str]:
    return [name.rstrip(), *counts, *map(str, shape.taken.values())]


def _request(plan: Plan, run: Run) -> str:
    """What a job of a run asks Slurm for, besides the columns, in a line; nothing without Slurm."""
    if (job := plan.job(run)) is None:
        return ""
    memory = f"{job.memory_mb:,} MB a node" if job.memory_mb else "no request for memory"
    return f"\n  partition {job.partition or 'by default'}, {memory}"


def _proven(check: Setting) -> dict[str, Any]:
    """A gate or reference as a row for `setting_labels`, without the fields that do not bear on gates."""
    row = described(check) if check.strategy.file else flat(check) | {"chosen_options": None}
    return row | {each.name: None for each in setting_fields() if "gate" not in each.about.bears_on}


def _looked_at(look: Preflight) -> dict[str, Any]:
    """A preflight as a row for `setting_labels`, with nothing but its shape."""
    unknown = {each.name: None for each in setting_fields()} | {"task": "", "strategy": "", "chosen_options": None}
    return {**unknown, **vars(look.shape), "world_size": look.shape.world_size}


def _hours(hours: float) -> str:
    return f"{round(hours, 1):g}"


def _totals(plan: Plan) -> str:
    total, limit = costs.whole(plan), counted(plan.config.runtime_minutes, "minute")
    line = (
        f"{counted(total.jobs, 'job')}; at most {_hours(total.cpu_hours)} CPU-hours and {_hours(total.gpu_hours)} "
        f"GPU-hours per try (time limit of each job: {limit})"
    )
    if plan.unmeasured:
        line += "; without the settings marked ?, whose speed is not measured yet"
    return line


def words_by_id(plan: Plan) -> dict[str, str]:
    """A name for each run, setting, gate, reference and preflight of the plan, by id: what tells it from the others."""
    names, repeats = {**plan.names}, {planned.id: planned.repeats for planned in plan.settings}
    for run in plan.runs:
        repeat = f", repeat {run.repeat + 1}" if repeats[run.setting_id] > 1 else ""
        names[run.id] = names[run.setting_id] + repeat
    labels = _labels(plan)
    checks = [*plan.gates.values(), *plan.references.values()]
    names |= {each.id: f"{each.strategy.name or 'reference'} ({labels[each.id]})" for each in checks}
    names |= {look: labels[look] for look in plan.preflights}
    return names


def unknown(plan: Plan) -> Iterator[str]:
    """What the plan does not know yet, in a line; nothing where it knows all."""
    if plan.looks:
        yield (
            f"task {plan.config.task}: its model and its data are not known yet, so its runs and their cost are "
            f"not known either. A job of stack {plan.stacks.plain} looks at it first, because this machine "
            "lacks what it needs"
        )


def nothing_for(plan: Plan, targets: Collection[str] = ()) -> str:
    """Why nothing can run for these targets of Snakemake, in one message; '' where something can run.

    Targets that are not all strategies of the plan count as a request for the whole plan.
    """
    strategies = [target for target in targets if target in plan.strategies]
    chosen = strategies if strategies and len(strategies) == len(targets) else plan.strategies
    if any(plan.runs_of(strategy) for strategy in chosen):
        return ""
    lines = (line for strategy in chosen for line in _skipped_of(plan, strategy))
    return "\n".join(["nothing can run, every setting is skipped:", *lines])


def skipped(plan: Plan) -> Iterator[str]:
    """A line for each reason of each skipped setting. Several settings of a strategy are told apart by their labels."""
    for strategy in plan.strategies:
        yield from _skipped_of(plan, strategy)


def _skipped_of(plan: Plan, strategy: str) -> Iterator[str]:
    settings = plan.skipped_of(strategy)
    for each, label in zip(settings, setting_labels([described(each.setting) for each in settings]), strict=True):
        named = f"{strategy} ({label})" if len(settings) > 1 else strategy
        yield from (f"skipped: {named}: {reason.removeprefix(f'{strategy} ')}" for reason in each.reasons)
