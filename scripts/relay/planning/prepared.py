"""What the driver does before any job: Slurm is asked, and the files are written that tell jobs what to compute,
and the comparison what was planned."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.base.files import read_json_or, write_json
from relay.planning import handed, here, rounds, shapes
from relay.planning.plan import Plan
from relay.run_folder import proofs
from relay.run_folder.layout import check_layout
from relay.run_folder.snapshot import PLANNED, freeze
from relay.run_folder.trust import make_all_own, make_own
from relay.spec.run import Gate, Run, Specification, Training
from relay.training.changed_code import code_of_today


def prepare(plan: Plan) -> None:
    """Check that Slurm would accept the jobs, then write the specifications of runs, gates and references.

    The specifications are not the outputs of a rule. If they were, Snakemake would skip the jobs that depend on a
    changed one, without a message. Raises UserError where Slurm refuses a job, and for results of another version.
    """
    results = plan.results
    make_own(results)
    check_layout(results)
    make_all_own(results, plan.config.checkpoint_writers, [plan.root / name for name in handed.WORKFLOW])
    expected = here.expected(plan)
    if refused := here.refused(expected):
        raise UserError(refused[0])
    for start in expected:
        if start.waits:
            print(start.line, file=sys.stderr)
    if edited := _edited(plan):
        print(edited, file=sys.stderr)
    plan.requests.write(results)
    rounds.write(results, plan.anchors)
    freeze_code(results, chain.from_iterable(_by_place(plan).values()))
    write(plan)
    for run in plan.runs:
        proofs.note(results / "runs" / run.id, plan.gate(run))


def write(plan: Plan, only: Specification | None = None) -> None:
    """Write the specifications, or `only` one of them, with what each job asks for.

    A run that has ended keeps its file: it says what its jobs asked for, whatever later ones would.
    """
    for place, specifications in _by_place(plan).items():
        for each in specifications:
            path = plan.results / place.format(id=each.id)
            if only in (None, each) and not _ended(path, each):
                each.write(path, plan.job(each))


def _by_place(plan: Plan) -> Mapping[str, Iterable[Training]]:
    """What is written ahead, by the places of the files."""
    return {
        "runs/{id}/run.json": plan.runs,
        "equivalence/gates/{id}/gate.json": plan.gates.values(),
        "equivalence/references/{id}/reference.json": plan.references.values(),
        "equivalence/spot_checks/{id}/spot_check.json": plan.spot_checks.values(),
    }


def freeze_code(results: Path, specifications: Iterable[Training]) -> None:
    """Freeze the code of all these jobs, and note which is whose. What is edited from now on is for the next plan."""
    folder, made = results / "code", dict[tuple[str, ...], dict[str, str]]()
    found: dict[str, dict[str, str]] = {}
    for each in specifications:
        strategy = each.strategy.name if isinstance(each, Run | Gate) else ""  # the others know nothing of strategies
        if (its := (strategy, each.task.name, each.task.file)) not in made:
            plain = {} if strategy else {"code": freeze(None, each.task.file, folder=folder).name}
            made[its] = plain or code_of_today(each, folder)
        found[f"{each.kind} {each.id}"] = made[its]
    write_json(folder / PLANNED, found)


def _ended(path: Path, specification: Specification) -> bool:
    if not (path.parent / "summary.json").exists():
        return False
    try:
        return Run.read(path) == specification
    except (OSError, UserError):
        return False


def _edited(plan: Plan) -> str:
    """What it means that the same config makes other runs than in the last call; '' where it does not."""
    before = read_json_or(plan.results / "plan.json", {})
    earlier, now = {run["id"] for run in before.get("runs", ())}, {run.id for run in plan.runs}
    if not earlier or earlier & now or before.get("config") != json.loads(json.dumps(plan.config.written())):
        return ""
    what = "the code, or the versions of its packages,"
    return f"{what} changed since the last call: its {len(now)} runs are new. Earlier results stay in results/runs"


def plan_json(plan: Plan) -> dict[str, Any]:
    """The content of `plan.json`."""
    runs = [
        {
            "id": run.id,
            "setting": run.setting_id,
            "gate": plan.gate(run),
            "segments": plan.segments(run),
            "reference": plan.reference_of.get(plan.gate(run)),
            "preflight": plan.preflight(run) if plan.site else None,
            "taken": shapes.charged(run.shape, plan.site, plan.config),
        }
        for run in plan.runs
    ]
    skipped = [{"setting": asdict(each.setting), "reasons": each.reasons} for each in plan.skipped]
    told = {"margin": plan.config.margin, "spot_checks": bool(plan.spot_checks), "answer": _answer_rules(plan)}
    told |= {"dropped": plan.dropped, "config": plan.config.written()}
    return {"runs": runs, "skipped": skipped, **told}


def _answer_rules(plan: Plan) -> dict[str, Any]:
    """What the answer is made by, besides the margin."""
    site = plan.site
    return {
        "least_efficiency": plan.config.least_efficiency,
        "cores_per_gpu": site.cores_per_gpu if site else None,
        "price": site.price.model_dump() if site else None,
        **plan.config.answer.model_dump(),
        "least_minutes": site.min_minutes if site else None,
        "most_minutes": plan.config.runtime_minutes,
        "site_flags": shapes.site_flags(site) if site else [],
    }
