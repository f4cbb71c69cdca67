"""Which settings are probed for the largest batch that fits, and the config that says what was found.

It imports no torch: the planner reads it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from relay.planning.config import Comparison, Config
from relay.planning.plan import Plan
from relay.planning.settings import AXES
from relay.spec import requirements
from relay.spec.identity import fingerprint
from relay.spec.probe import Limits
from relay.spec.requirements import Requirements
from relay.spec.run import Run

HEADER = """\
# The config with the largest batches that fit, by `snakemake probe`; each setting is a comparison of its own. Use it by
#   snakemake --profile … --configfile {path}
# A larger batch is another training: mind learning_rate and learning_rate_scaling.
"""


@dataclass(frozen=True)
class Probe:
    """A probe of one setting, which stands for those that differ in their batch alone. `run` is one of its runs."""

    run: Run
    limits: Limits
    settings: tuple[str, ...]


def probes(plan: Plan) -> dict[str, Probe]:
    """The probes of a plan, by the setting that each is of."""
    found: dict[str, Probe] = {}
    known: dict[str, str] = {}
    for setting in plan.settings:
        run = next(run for run in plan.runs if run.setting == setting.run.setting)
        name = known.setdefault(_but_for_its_batch(run), run.setting)
        if name in found:
            found[name] = replace(found[name], settings=(*found[name].settings, run.setting))
        else:
            found[name] = Probe(run, _limits(run, plan.config), (run.setting,))
    return found


def _but_for_its_batch(run: Run) -> str:
    """What settings have in common that differ in their batch alone."""
    values = run.to_dict()
    own = {"id", "setting", "repeat", "seed", "global_batch_size", "learning_rate_scaling", "epochs"}
    own |= {"steps_per_epoch", "total_steps", "evaluate_every_steps"}
    values["task"] = values["task"] | {"learning_rate": None}
    return fingerprint({name: value for name, value in values.items() if name not in own})


def _limits(run: Run, config: Config) -> Limits:
    """What the probe may try: no batch that the planner would then refuse."""
    unit = batch_unit(run, requirements.read(Path(run.strategy_file)))
    most, asked = unit, config.probe
    while most + unit <= asked.most and _leaves_steps((most + unit) * run.devices, run, config):
        most += unit
    first = min(most, max(1, run.global_batch_size // run.devices // unit) * unit)
    return Limits(unit, first, most, asked.minutes, asked.memory_fraction, config.memory_mb_per_node)


def _leaves_steps(batch: int, run: Run, config: Config) -> bool:
    """Whether a run with that global batch has steps that are timed."""
    return round(config.epochs * (run.dataset.train_count // batch)) > config.warmup_steps


def batch_unit(run: Run, needs: Requirements) -> int:
    """Samples per device of which every batch must be a multiple: for whole slices, in whole parts."""
    replicas = run.world_size // needs.group_size(run.world_size, run.options)
    slices = run.devices if needs.processes == "one" else replicas
    parts = math.lcm(*(run.options.get(name, 1) for name in needs.whole_batches))
    whole = slices * parts if "samples" in needs.divides else parts
    return math.lcm(whole, run.devices) // run.devices


def config_text(plan: Plan, found: Mapping[str, Mapping[str, Any]], path: str) -> str:
    """The plan's config as YAML, with the batch that was found in each setting. `found`: the answers, by setting."""
    batch_of = {setting: found[name]["batch_per_device"] for name, p in probes(plan).items() for setting in p.settings}
    files = requirements.find([Path(folder) for folder in plan.config.strategy_folders])
    defaults = {name: requirements.read(files[name]).options for name in plan.strategies}
    entries = []
    for setting in plan.settings:
        batch = batch_of[setting.run.setting]
        entry = _comparison(vars(setting.run), batch, defaults) | {"repeats": setting.repeats}
        if setting.segment:
            entry["segment"] = setting.segment.model_dump(exclude_none=True)
        if entry not in entries:
            entries.append(entry)
    entries += [_comparison(row, None, defaults) for row in plan.skipped]
    config = plan.config.model_dump(exclude_defaults=True) | {"comparisons": entries}
    return HEADER.format(path=path) + yaml.safe_dump(config, sort_keys=False, width=120)


def _comparison(
    values: Mapping[str, Any], batch: int | None, defaults: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """A setting as a comparison of one: what differs from the defaults. Without a batch, it keeps its own."""
    own = {"global_batch_size": values["global_batch_size"]} if batch is None else {"batch_per_device": batch}
    axes = {name: values[name] for name in AXES if name in values and name not in own} | own
    if batch is not None:
        axes.pop("global_batch_size", None)
    if values["processes_per_node"] > values["devices_per_node"]:
        axes["processes_per_device"] = values["processes_per_node"] // values["devices_per_node"]
    fields = Comparison.model_fields
    given = {name: value for name, value in axes.items() if [value] != fields[name].default}
    usual = defaults[values["strategy"]]
    options = {name: value for name, value in values["options"].items() if value != usual[name]}
    return {"strategy": values["strategy"], **given} | ({"options": options} if options else {})


def shown(plan: Plan, found: Mapping[str, Mapping[str, Any]], path: str) -> str:
    """What was found, a line for each setting, and what to do with it."""
    lines = []
    for name, probe in probes(plan).items():
        answer, run = found[name], probe.run
        shape = f"{run.nodes} × {run.devices_per_node} {run.device}, {run.precision}"
        limits = {"memory": "", "most": ", the most that was to be tried", "minutes": ", as far as the time allowed"}
        size = f"{answer['batch_per_device']} samples per device{limits[answer['limited_by']]}"
        lines.append(f"{name} ({shape}): {answer['reason'] or size}")
    lines += [f"{row['strategy']}: skipped: {row['reason']}" for row in plan.skipped]
    return "\n".join([*lines, f"Use it by: snakemake --profile … --configfile {path}"])
