"""The plans of `snakemake probe` and `snakemake largest_model`: which settings are tried, and what the answers mean.

The driver imports this module, so that it does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from relay.config.comparisons import Comparison
from relay.config.config import Config
from relay.config.strategies import unit
from relay.planning.plan import Plan
from relay.probe.deepest import LargestModel, of_record
from relay.spec import strategy_files
from relay.spec.identity import fingerprint
from relay.spec.requirements import Requirements
from relay.spec.run import Probe, SearchLimits, Setting, setting_fields, value_of

LARGEST_MODEL = "largest_model"  # the target
HEADER = """\
# Made by `snakemake probe`: the config with the largest batches that fit, one comparison for each setting. To use it:
#   snakemake --profile … --configfile {path}
# A larger batch changes the training. Check learning_rate and learning_rate_scaling.
"""


@dataclass(frozen=True)
class PlannedProbe:
    """One probe for all settings that differ in nothing but their batch size; `settings` are their ids."""

    probe: Probe
    limits: SearchLimits
    settings: tuple[str, ...]


def batch_searches(plan: Plan) -> dict[str, PlannedProbe]:
    """The probes of a plan, by the id of the first setting that each stands for."""
    planned_probes: dict[str, PlannedProbe] = {}
    first_of: dict[str, str] = {}
    for planned in plan.settings:
        if planned.setting.strategy.script:  # its batch is its own affair
            continue
        name = first_of.setdefault(_without_batch(planned.setting), planned.id)
        if name in planned_probes:
            probe_so_far = planned_probes[name]
            planned_probes[name] = replace(probe_so_far, settings=(*probe_so_far.settings, planned.id))
        else:
            probe = Probe.of(planned.setting, id=name, seed=plan.config.seed)
            planned_probes[name] = PlannedProbe(probe, _limits(probe, plan.config), (planned.id,))
    return planned_probes


def refusals(plan: Plan, targets: Collection[str]) -> list[str]:
    """Why these targets of Snakemake cannot be made.

    A probe must not take longer than its job may. A search for the largest model needs a task with an option `depth`.
    """
    lines, config = [], plan.config
    named_so = ("probe", LARGEST_MODEL)
    probing = any(Path(target).name.startswith(named_so) or "results/probe" in target for target in targets)
    if probing and config.probe.minutes > config.runtime_minutes:
        limit = f"at most {config.runtime_minutes} (runtime_minutes)"
        lines.append(f"config: probe.minutes: {config.probe.minutes:g} is not allowed; allowed: {limit}")
    if LARGEST_MODEL in targets and not depth_searches(plan):
        allowed = "tasks with an option depth, the number of their blocks, such as gpt-tiny"
        lines.append(f"config: task: {config.task} has no depth to search over; allowed for {LARGEST_MODEL}: {allowed}")
    return lines


def _without_batch(setting: Setting) -> str:
    """The fingerprint of a setting without its batch size and length."""
    optimizer = (setting.task.optimizer, dict(setting.task.optimizer_options))
    groups = (setting.shape, setting.place, setting.computation, setting.feeding)
    return fingerprint([setting.task.name, dict(setting.task.options), *optimizer, setting.strategy, *groups])


def _limits(probe: Probe, config: Config) -> SearchLimits:
    """The batches that the probe may try: only those that the planner would accept."""
    unit = batch_unit(probe, strategy_files.read(Path(probe.strategy.file)))
    most, bounds, devices = unit, config.probe, probe.shape.devices
    while most + unit <= bounds.most and _leaves_steps((most + unit) * devices, probe, config):
        most += unit
    first = min(most, max(1, probe.batch.global_batch_size // devices // unit) * unit)
    return SearchLimits(unit, first, most, bounds.minutes, bounds.memory_fraction, config.memory_mb_per_node)


def _leaves_steps(batch: int, probe: Probe, config: Config) -> bool:
    """Whether a run with the global batch size `batch` has any timed steps after warm-up."""
    return round(probe.length.epochs * (probe.dataset.train_count // batch)) > config.warmup_steps


def batch_unit(setting: Setting, needs: Requirements) -> int:
    """The samples per device of which every batch must be a multiple, so that it divides evenly."""
    devices = setting.shape.devices
    return math.lcm(unit(setting, needs), devices) // devices


def config_text(plan: Plan, answers: Mapping[str, Mapping[str, Any]], path: str) -> str:
    """The plan's config as YAML, with the largest batch of each setting. `answers` maps a probe's id to its answer."""
    batch_of = {
        setting: answers[name]["batch_per_device"] for name, p in batch_searches(plan).items() for setting in p.settings
    }
    entries = []
    for planned in plan.settings:
        entry = _comparison(planned.setting, batch_of[planned.id]) | {"repeats": planned.repeats}
        if planned.segment:
            entry["segment"] = planned.segment.model_dump(exclude_none=True)
        if entry not in entries:
            entries.append(entry)
    entries += [_comparison(skipped.setting, None) for skipped in plan.skipped]
    config = plan.config.model_dump(exclude_defaults=True) | {"comparisons": entries}
    return HEADER.format(path=path) + yaml.safe_dump(config, sort_keys=False, width=120)


def _comparison(setting: Setting, batch_per_device: int | None) -> dict[str, Any]:
    """A comparison with this setting alone; values that are the defaults are left out.

    Without `batch_per_device` it keeps the setting's batch size.
    """
    axes = {each.name: value_of(setting, each) for each in setting_fields() if each.about.axis is not None}
    if batch_per_device is not None:
        axes |= {"global_batch_size": None, "batch_per_device": batch_per_device}
    changed = {name: value for name, value in axes.items() if [value] != Comparison.model_fields[name].default}
    options = strategy_files.chosen(Path(setting.strategy.file), setting.strategy.options)
    return {"strategy": setting.strategy.name, **changed} | ({"options": options} if options else {})


def shown_batches(plan: Plan, answers: Mapping[str, Mapping[str, Any]], path: str) -> str:
    """The probes' answers for the terminal: a line for each setting, and the command that uses them."""
    lines = []
    for name, planned in batch_searches(plan).items():
        answer, shape = answers[name], planned.probe.shape
        place = f"{shape.nodes} × {shape.devices_per_node} {shape.device}, {planned.probe.computation.precision}"
        limits = {
            "memory": "",
            "most": ", the largest batch to try",
            "minutes": ", the largest tried in the time allowed",
        }
        size = f"{answer['batch_per_device']} samples per device{limits[answer['limited_by']]}"
        lines.append(f"{name} ({place}): {answer['reason'] or size}")
    lines += [f"{skip.setting.strategy.name}: skipped: {reason}" for skip in plan.skipped for reason in skip.reasons]
    return "\n".join([*lines, f"Use it by: snakemake --profile … --configfile {path}"])


def depth_searches(plan: Plan) -> dict[str, PlannedProbe]:
    """The searches of a plan, by the setting's id: one for each setting whose task has an option `depth`."""
    planned_searches = {}
    for planned in plan.settings:
        if "depth" in planned.setting.task.options:
            probe = Probe.of(planned.setting, id=planned.id, seed=plan.config.seed)
            planned_searches[planned.id] = PlannedProbe(probe, _depths(probe, plan.config), (planned.id,))
    return planned_searches


def _depths(probe: Probe, config: Config) -> SearchLimits:
    """Depths that have a block for each stage of a pipeline."""
    needs = strategy_files.read(Path(probe.strategy.file))
    stages = needs.stages_per_process(probe.strategy.options) * probe.shape.world_size
    bounds, first = config.probe, max(1, stages if "cut_before" in needs.options else 1)
    return SearchLimits(1, first, bounds.most_blocks, bounds.minutes, bounds.memory_fraction, config.memory_mb_per_node)


def shown_depths(plan: Plan, answers: Mapping[str, Mapping[str, Any]]) -> str:
    """The answers for the terminal: a line for each setting, the prediction beside what was found."""
    lines = [_line(of_record(answers[name], name)) for name in depth_searches(plan)]
    lines += [f"{skip.setting.strategy.name}: skipped: {reason}" for skip in plan.skipped for reason in skip.reasons]
    return "\n".join(lines)


def _line(answer: LargestModel) -> str:
    if answer.depth is None:
        return f"{answer.name}: {answer.reason}"
    line = ", ".join(filter(None, (f"{answer.name}: {answer.depth} blocks", answer.limit_in_words)))
    if answer.parameters is None or answer.predicted_parameters is None:
        return line
    count, said = answer.parameters / 1e6, answer.predicted_parameters / 1e6
    formula = f"by the formula {answer.predicted_depth} blocks, {said:.4g} M"
    return f"{line}, {count:.4g} M parameters; {formula} ({answer.state_bytes:.4g} bytes for each)"
