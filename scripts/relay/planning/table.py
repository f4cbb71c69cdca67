"""The plan as a table for the terminal: jobs, processors, and the hours that they cost at most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from relay.base.plain_text import plain_text
from relay.planning.plan import PREFLIGHT_MINUTES, Plan
from relay.spec.messages import show
from relay.spec.requirements import chosen
from relay.spec.run import Run

# What tells two settings of a plan apart, with the short form in which a row names it.
LABELS = {
    "device": "{}",
    "nodes": "nodes {}",
    "devices_per_node": "×{}",
    "processes_per_node": "{} processes",
    "global_batch_size": "batch {}",
    "learning_rate": "rate {:g}",
    "learning_rate_scaling": "scaling {}",
    "loader": "{}",
    "data_workers": "workers {}",
    "cpus_per_task": "CPUs {}",
    "threads": "threads {}",
    "interop_threads": "inter-op {}",
    "precision": "{}",
    "compile": "compile {}",
    "channels_last": "channels last {}",
    "activation_checkpointing": "activation checkpointing {}",
    "launcher": "{}",
    "options": "{}",
}


@dataclass(frozen=True)
class Cost:
    """Jobs, and the most that one try of each may spend: its declared time limit on all its processors."""

    jobs: int = 0
    cpu_hours: float = 0.0
    gpu_hours: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.jobs + other.jobs, self.cpu_hours + other.cpu_hours, self.gpu_hours + other.gpu_hours)


def cpus(run: Run) -> int:
    """CPU cores that a job of the run asks for."""
    return run.world_size * run.cpus_per_task


def gpus(run: Run) -> int:
    """GPUs that a job of the run asks for."""
    return run.devices if run.device == "cuda" else 0


def cost(plan: Plan) -> Cost:
    """The whole plan's cost, gates and references included, without settings whose speed is not measured."""
    unmeasured = {run.setting for run in plan.unmeasured}
    jobs = [*plan.references.values(), *plan.gates.values()]
    jobs += [run for run in plan.runs if run.setting not in unmeasured for _ in plan.segments(run)]
    hours = plan.config.runtime_minutes / 60
    total = sum((Cost(1, hours * cpus(run), hours * gpus(run)) for run in jobs), Cost())
    looks = plan.preflights.values() if plan.site else ()
    hours = PREFLIGHT_MINUTES / 60
    return sum((Cost(1, hours * cpus(run), hours * gpus(run)) for run in looks), total)


def render(plan: Plan, width: int = 80) -> str:
    """The table, the totals, what is skipped and why, and the warnings, in lines of at most `width`."""
    table = Table(expand=False, pad_edge=False)
    table.add_column("what", overflow="fold")
    for name in ("runs", "segments", "jobs", "steps", "CPUs", "GPUs"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in _rows(plan):
        table.add_row(*row)
    lines = [
        _totals(plan),
        *plan.expected_starts(),
        *_skipped(plan),
        *(f"warning: {warning}" for warning in plan.warnings),
    ]
    return plain_text(table, *(Text(line) for line in lines), width=width) + "\n"


def _rows(plan: Plan) -> Iterator[list[str]]:
    """Preflights, references and gates, one job each, then the settings with all their repeats."""
    looks = list(plan.preflights.values()) if plan.site else []
    for checks in (looks, list(plan.references.values()), list(plan.gates.values())):
        for run, label in zip(checks, _labels([_described(run) for run in checks]), strict=True):
            what = {"reference": "reference", "preflight": "preflight"}.get(run.strategy, f"gate of {run.strategy}")
            steps = "–" if run.strategy == "preflight" else str(run.total_steps)
            yield [f"{what} {label}".rstrip(), "1", "1", "1", steps, str(cpus(run)), str(gpus(run))]
    unmeasured = {run.setting for run in plan.unmeasured}
    runs = [setting.run for setting in plan.settings]
    for setting, label in zip(plan.settings, _labels([_described(run) for run in runs]), strict=True):
        run = setting.run
        segments = 0 if run.setting in unmeasured else len(plan.segments(run))
        jobs = [str(setting.repeats), str(segments or "?"), str(segments * setting.repeats or "?")]
        yield [
            f"{run.strategy} {label}".rstrip(),
            *jobs,
            str(run.total_steps),
            str(cpus(run)),
            str(gpus(run)),
        ]


def _described(run: Run) -> dict[str, Any]:
    """The run as a row; of its options those that are not the strategy's defaults."""
    options = chosen(Path(run.strategy_file), run.options) if run.options else {}
    return {**vars(run), "options": options, "world_size": run.world_size, "learning_rate": run.task.learning_rate}


def _labels(rows: list[dict[str, Any]]) -> list[str]:
    """For each row, what tells it from the others; without the columns that follow from those named."""
    differing = [name for name in LABELS if len({str(row.get(name)) for row in rows}) > 1]
    follows = {
        "learning_rate": "learning_rate_scaling" in differing,
        "threads": all(row["threads"] == row["cpus_per_task"] for row in rows),
        "processes_per_node": all(row["processes_per_node"] == row["devices_per_node"] for row in rows),
        "launcher": all((row["launcher"] == "none") == (row["world_size"] == 1) for row in rows),
    }
    named = [name for name in differing if not follows.get(name)]
    return [", ".join(filter(None, (_label(name, row[name]) for name in named))) for row in rows]


def _label(name: str, value: Any) -> str:
    if name == "options":
        return ", ".join(f"{option} {show(given)}" for option, given in value.items())
    return LABELS[name].format(value)


def _hours(hours: float) -> str:
    return f"{round(hours, 1):g}"


def _totals(plan: Plan) -> str:
    total = cost(plan)
    line = (
        f"{total.jobs} jobs; at most {_hours(total.cpu_hours)} CPU-hours and {_hours(total.gpu_hours)} GPU-hours "
        f"per try (time limit of each job: {plan.config.runtime_minutes} minutes)"
    )
    if plan.unmeasured:
        line += "; without the settings marked ?, whose speed is not measured yet"
    return line


def _skipped(plan: Plan) -> list[str]:
    """A line for each skipped setting, with what tells it from its strategy's others."""
    lines = []
    for strategy in plan.strategies:
        rows = [row for row in plan.skipped if row["strategy"] == strategy]
        for row, label in zip(rows, _labels(rows), strict=True):
            reason = row["reason"].removeprefix(f"{strategy} ") if not label else f"({label}): {row['reason']}"
            lines.append(f"skipped: {strategy}{' ' if label or reason != row['reason'] else ': '}{reason}")
    return lines
