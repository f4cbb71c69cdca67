"""When the queue would start a plan's jobs if they were submitted now, or why Slurm refuses them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from relay.base.errors import NoNode, Unavailable, UserError
from relay.planning import shapes
from relay.planning.plan import Plan
from relay.slurm import commands
from relay.spec.setting import Shape


@dataclass(frozen=True)
class ExpectedStart:
    """A line for the user: when the queue would start a job of some shape if it were submitted now.

    `refused` is true where Slurm would not accept the job, `waits` where it would queue it until nodes are back; the
    line then has Slurm's reason.
    """

    line: str
    refused: bool = False
    waits: bool = False


@cache  # Slurm takes a moment for each
def expected(plan: Plan) -> tuple[ExpectedStart, ...]:
    """For a job of each shape: when the queue would start it, or why Slurm refuses it. Nothing without Slurm."""
    return tuple(_expected(plan))


def refused(starts: Iterable[ExpectedStart]) -> list[str]:
    """Why Slurm would refuse a job, one line for each shape."""
    return [start.line for start in starts if start.refused]


def _expected(plan: Plan) -> Iterator[ExpectedStart]:
    if plan.site is None or not commands.available():
        return
    now = datetime.now().astimezone()
    of_shape = {plan.preflight(run): run for run in plan.runs}
    for each in (of_shape[shape] for shape in plan.preflights if shape in of_shape):  # runs are in a random order
        job = plan.job(each)
        assert job is not None
        what = f"a job of {_words(each.shape)}, {job.tasks} × {job.cpus_per_task} CPUs"
        try:
            start = commands.expected_start(shapes.sbatch_flags(job, plan.site), job.partition)
        except Unavailable as error:
            yield ExpectedStart(f"expected start of {what}: not known: {error}")
        except NoNode as error:
            told = f"warning: Slurm would queue {what}, and can start it on no node now: {error}"
            yield ExpectedStart(told, waits=True)
        except UserError as error:
            yield ExpectedStart(f"Slurm refuses, for {plan.site.file}, {what}: {error}", refused=True)
        else:
            minutes = max(0.0, (start - now).total_seconds() / 60) if start else 0.0
            yield ExpectedStart(f"expected start of {what}: in {minutes:.0f} minutes, says sbatch --test-only")


def _words(shape: Shape) -> str:
    return f"{shape.nodes} × {shape.devices_per_node} {shape.device}"
