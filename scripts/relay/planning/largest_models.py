"""The plan of `snakemake largest_model`: which settings are searched for the largest model that fits, and the answers.

The planner imports this module, so that it does not import torch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from relay.comparison.found_beside import LargestModel, of_record
from relay.planning.checks import named
from relay.planning.config import Config
from relay.planning.plan import Plan
from relay.planning.probed import PlannedProbe
from relay.spec import requirements
from relay.spec.probe import Limits
from relay.spec.run import Probe

TARGET = "largest_model"


def searches(plan: Plan) -> dict[str, PlannedProbe]:
    """The searches of a plan, by the setting's id: one for each setting whose task has an option `depth`."""
    found = {}
    for planned in plan.settings:
        if "depth" in planned.setting.task.options:
            probe = named(Probe, planned.setting, id=planned.id, seed=plan.config.seed)
            found[planned.id] = PlannedProbe(probe, _limits(probe, plan.config), (planned.id,))
    return found


def _limits(probe: Probe, config: Config) -> Limits:
    """Depths that have a block for each stage of a pipeline."""
    needs = requirements.read(Path(probe.strategy.file))
    stages = needs.stages_per_process(probe.strategy.options) * probe.shape.world_size
    asked, first = config.probe, max(1, stages if "cut_before" in needs.options else 1)
    return Limits(1, first, asked.most_blocks, asked.minutes, asked.memory_fraction, config.memory_mb_per_node)


def refusals(plan: Plan, targets: Collection[str]) -> list[str]:
    """Why this target of Snakemake cannot be made: the task has no option `depth`."""
    if TARGET not in targets or searches(plan):
        return []
    allowed = "tasks with an option depth, the number of their blocks, such as gpt-tiny"
    return [f"config: task: {plan.config.task} has no depth to search over; allowed for {TARGET}: {allowed}"]


def shown(plan: Plan, found: Mapping[str, Mapping[str, Any]]) -> str:
    """The answers for the terminal: a line for each setting, the prediction beside what was found."""
    lines = [_line(of_record(found[name], name)) for name in searches(plan)]
    lines += [f"{skip.setting.strategy.name}: skipped: {reason}" for skip in plan.skipped for reason in skip.reasons]
    return "\n".join(lines)


def _line(answer: LargestModel) -> str:
    if answer.depth is None:
        return f"{answer.name}: {answer.reason}"
    line = ", ".join(filter(None, (f"{answer.name}: {answer.depth} blocks", answer.told_limit)))
    if answer.parameters is None or answer.predicted_parameters is None:
        return line
    count, said = answer.parameters / 1e6, answer.predicted_parameters / 1e6
    formula = f"by the formula {answer.predicted_depth} blocks, {said:.4g} M"
    return f"{line}, {count:.4g} M parameters; {formula} ({answer.state_bytes:.4g} bytes for each)"
