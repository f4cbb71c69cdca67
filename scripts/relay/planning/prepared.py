"""What the driver does before any job: Slurm is asked, and the files are written that tell jobs what to compute,
and the comparison what was planned."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.base.files import read_json_or, write_json
from relay.chain import writers
from relay.planning import handed, here, rounds, shapes
from relay.planning.plan import Plan
from relay.run_folder import proofs
from relay.run_folder.layout import check_layout
from relay.run_folder.snapshot import PLANNED, freeze
from relay.spec.run import Gate, Run, Specification, Training
from relay.training.changed_code import code_of_today

# What jobs run, load, or are told to run: its folders below `results`, down to this depth.
OF_JOBS = {"checkpoints": 1, "code": 1, "equivalence": 2, "locks": 0, "runs": 1, "wheelhouses": 1}


def prepare(plan: Plan) -> None:
    """Check that Slurm would accept the jobs, then write the specifications of runs, gates and references.

    The specifications are not the outputs of a rule. If they were, Snakemake would skip the jobs that depend on a
    changed one, without a message. Raises UserError where Slurm refuses a job, and for results of another version.
    """
    results = plan.results
    writers.make_own(results)
    check_layout(results)
    keep_others_out(results, [plan.root / name for name in handed.WORKFLOW])
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


def keep_others_out(results: Path, sources: Sequence[Path] = ()) -> None:
    """Close the folders of what jobs run or load, and warn where a group could write there, or above.

    Raises UserError where another user could put something into one, or change one of the `sources`: files and folders
    that are the program. Whose these are does not matter.
    """
    os.umask(os.umask(0o077) | 0o022)  # for all that this process and its jobs make
    state = results.parent / ".snakemake"  # with environments
    program = [path for source in sources for path in (source, *source.rglob("*"))]
    for made in (state, *(path for path in program if path.name == "__pycache__")):  # before, by this process
        writers.keep_to_owner(made)
    folders = [results, *([state] if state.is_dir() else [])]
    for name, depth in OF_JOBS.items():
        writers.make_own(results / name)
        folders.append(results / name)
        folders += (folder for level in range(1, depth + 1) for folder in (results / name).glob("*/" * level))
    own, others = [folder.resolve() for folder in folders], [*results.resolve().parents, *program]
    for path in (*own, *others):
        with suppress(FileNotFoundError):  # such as bytecode that Python has just renamed
            if problem := writers.unsafe(path, folder=path not in own):
                raise UserError(problem)
    if line := writers.warning((*own, *others), results, owners=False):
        print(line, file=sys.stderr)


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
