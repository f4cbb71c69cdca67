"""The plans of `snakemake probe` and `snakemake largest_model`: which settings are tried, and what the answers mean.

The driver imports this module, so that it does not import torch.
"""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from relay.base.grouped import grouped
from relay.config.comparisons import Comparison
from relay.config.config import Config
from relay.config.strategies import unit
from relay.planning.plan import Plan, PlannedSetting
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


def batch_searches(plan: Plan) -> dict[str, Probe]:
    """The probes of a plan, by the id of the first setting that each stands for."""
    return {probe.id: probe for probe in _probe_of_each(plan).values()}


def _probe_of_each(plan: Plan) -> dict[str, Probe]:
    """The probe of each setting: one for all that differ in nothing but their batch size."""
    probes: dict[str, Probe] = {}
    for alike in grouped(plan.settings, lambda planned: _without_batch(planned.setting)).values():
        first = alike[0]
        if not first.setting.strategy.script:  # its batch is its own affair
            probe = _probe(first, _limits(first.setting, plan.config), plan)
            probes |= {planned.id: probe for planned in alike}
    return probes


def _probe(planned: PlannedSetting, limits: SearchLimits, plan: Plan) -> Probe:
    return Probe.of(planned.setting, id=planned.id, seed=plan.config.seed, limits=limits)


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


def _limits(setting: Setting, config: Config) -> SearchLimits:
    """The batches that the probe may try: only those that the planner would accept."""
    unit = batch_unit(setting, strategy_files.read(Path(setting.strategy.file)))
    most, devices = unit, setting.shape.devices
    while most + unit <= config.probe.most and _leaves_steps((most + unit) * devices, setting, config):
        most += unit
    first = min(most, max(1, setting.batch.global_batch_size // devices // unit) * unit)
    return _bounded(config, unit=unit, first=first, most=most)


def _bounded(config: Config, *, unit: int, first: int, most: int) -> SearchLimits:
    """These limits of sizes, with the config's of time and memory."""
    return SearchLimits(
        unit=unit,
        first=first,
        most=most,
        minutes=config.probe.minutes,
        memory_fraction=config.probe.memory_fraction,
        node_memory_mb=config.memory_mb_per_node,
    )


def _leaves_steps(batch: int, setting: Setting, config: Config) -> bool:
    """Whether a run with the global batch size `batch` has any timed steps after warm-up."""
    return round(setting.length.epochs * (setting.dataset.train_count // batch)) > config.warmup_steps


def batch_unit(setting: Setting, needs: Requirements) -> int:
    """The samples per device of which every batch must be a multiple, so that it divides evenly."""
    devices = setting.shape.devices
    return math.lcm(unit(setting, needs), devices) // devices


def config_text(plan: Plan, answers: Mapping[str, Mapping[str, Any]], path: str) -> str:
    """The plan's config as YAML, with the largest batch of each setting. `answers` maps a probe's id to its answer."""
    batch_of = {setting: answers[probe.id]["batch_per_device"] for setting, probe in _probe_of_each(plan).items()}
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
    for name, probe in batch_searches(plan).items():
        answer, shape = answers[name], probe.shape
        place = f"{shape.nodes} × {shape.devices_per_node} {shape.device}, {probe.computation.precision}"
        limits = {
            "memory": "",
            "most": ", the largest batch to try",
            "minutes": ", the largest tried in the time allowed",
        }
        size = f"{answer['batch_per_device']} samples per device{limits[answer['limited_by']]}"
        lines.append(f"{name} ({place}): {answer['reason'] or size}")
    lines += [f"{skip.setting.strategy.name}: skipped: {reason}" for skip in plan.skipped for reason in skip.reasons]
    return "\n".join([*lines, f"Use it by: snakemake --profile … --configfile {path}"])


def depth_searches(plan: Plan) -> dict[str, Probe]:
    """The searches of a plan, by the setting's id: one for each setting whose task has an option `depth`."""
    deep = [planned for planned in plan.settings if "depth" in planned.setting.task.options]
    return {planned.id: _probe(planned, _depths(planned.setting, plan.config), plan) for planned in deep}


def _depths(setting: Setting, config: Config) -> SearchLimits:
    """Depths that have a block for each stage of a pipeline."""
    needs = strategy_files.read(Path(setting.strategy.file))
    stages = needs.stages_per_process(setting.strategy.options) * setting.shape.world_size
    first = max(1, stages if "cut_before" in needs.options else 1)
    return _bounded(config, unit=1, first=first, most=config.probe.most_blocks)


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
