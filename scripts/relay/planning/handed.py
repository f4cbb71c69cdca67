"""What jobs are handed before any of them runs: the specifications of what they compute, and the plan of their call.

Snakemake starts itself again in each job. If that planned from today's files, an edit would leave waiting jobs without
their runs. So a call writes down its plan and, on a cluster, the workflow, as they were when it began. Only one driver
at a time works on a folder, and it waits for the jobs of an earlier one: there is one plan.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from relay.base.errors import UserError
from relay.base.files import read_json_or, remove, write_json
from relay.chain import writers
from relay.config.config import Config
from relay.planning import requests, rounds
from relay.planning.plan import Plan, specification_place
from relay.run_folder import proof_notes
from relay.run_folder.results_folder import check_layout, keep_others_out
from relay.run_folder.snapshot import PLANNED, freeze
from relay.slurm import shapes
from relay.spec.labels import counted
from relay.spec.run import Gate, Run, Specification, Training
from relay.spec.site import read_from
from relay.training.changed_code import code_of_today

FOLDER = Path("results/code/call")  # where only the user may write: jobs run what lies there
PLAN = "plan.json"
WORKFLOW = ("Snakefile", "workflow", "scripts", "config", "envs")


@dataclass(frozen=True)
class Handed:
    """What a job knows of its call: its plan, whether it is a self-test, and the site's file as messages name it."""

    plan: Plan
    selftest: bool
    site_file: str = ""


@cache
def _json() -> TypeAdapter[Handed]:
    return TypeAdapter(Handed)


def prepare(plan: Plan) -> None:
    """Check that Slurm would accept the jobs, then write the specifications of runs, gates and references.

    The specifications are not the outputs of a rule. If they were, Snakemake would skip the jobs that depend on a
    changed one, without a message. Raises UserError where Slurm refuses a job, and for results of another version.
    """
    results = plan.results
    writers.make_own(results)
    check_layout(results)
    keep_others_out(results, [plan.root / name for name in WORKFLOW])
    if refused := requests.refused(plan):
        raise UserError(refused[0])
    for start in requests.expected(plan):
        if start.waits:
            print(start.line, file=sys.stderr)
    if edited := _edited(plan):
        print(edited, file=sys.stderr)
    plan.requests.write(results)
    rounds.write(results, plan.anchors)
    freeze_code(results, chain.from_iterable(_written_ahead(plan).values()))
    write(plan)
    for run in plan.runs:
        proof_notes.note(results / "runs" / run.id, plan.gate(run))


def write(plan: Plan, only: Specification | None = None) -> None:
    """Write the specifications, or `only` one of them, with what each job asks for.

    A run that has ended keeps its file: it says what its jobs asked for, whatever later ones would.
    """
    for rule, specifications in _written_ahead(plan).items():
        for each in specifications:
            path = plan.results / specification_place(rule, each.id)
            if only in (None, each) and not _ended(path, each):
                each.write(path, plan.job(each))


def _written_ahead(plan: Plan) -> dict[str, Iterable[Training]]:
    return {
        "run": plan.runs,
        "gate": plan.gates.values(),
        "reference": plan.references.values(),
        "spot_check": plan.spot_checks.values(),
    }


def freeze_code(results: Path, specifications: Iterable[Training]) -> None:
    """Freeze the code of all these jobs, and note which is whose. What is edited from now on is for the next plan."""
    folder, frozen = results / "code", dict[tuple[str, ...], dict[str, str]]()
    code_of: dict[str, dict[str, str]] = {}
    for each in specifications:
        strategy = each.strategy.name if isinstance(each, Run | Gate) else ""  # the others know nothing of strategies
        if (code := (strategy, each.task.name, each.task.file)) not in frozen:
            plain = {} if strategy else {"code": freeze(None, each.task.file, folder=folder).name}
            frozen[code] = plain or code_of_today(each, folder)
        code_of[f"{each.kind} {each.id}"] = frozen[code]
    write_json(folder / PLANNED, code_of)


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
    earlier, now = set[str](), {run.id for run in plan.runs}
    with suppress(KeyError, TypeError):  # it is damaged, or of another version
        earlier = {run["id"] for run in before.get("runs", ())}
    if not earlier or earlier & now or before.get("config") != json.loads(json.dumps(plan.config.written())):
        return ""
    cause = "the code, or the versions of its packages,"
    new = f"changed since the last call, which makes {counted(len(now), 'new run')}"
    return f"{cause} {new}. Earlier results stay in results/runs"


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
    rules = {"margin": plan.config.margin, "spot_checks": bool(plan.spot_checks), "answer": _answer_rules(plan)}
    return {"runs": runs, "skipped": skipped, **rules, "dropped": plan.dropped, "config": plan.config.written()}


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


def hand_over(plan: Plan, *, selftest: bool, workflow: Any) -> None:
    """Write down a call's plan for its jobs. Those on nodes run a copy of the workflow, and read no config of today."""
    partial = FOLDER.with_name(f".{FOLDER.name}")
    remove(partial)  # of a driver that was killed
    writers.make_own(partial)
    if plan.site:
        for name in WORKFLOW:
            _copy(plan.root / name, partial / name)
    (partial / PLAN).write_bytes(_written(plan, selftest))
    writers.keep_to_owner(partial)
    remove(FOLDER)
    partial.rename(FOLDER)
    workflow.config_settings.configfiles = []  # Snakemake names them to its jobs, and the plan has their content


def _copy(source: Path, place: Path) -> None:
    """Copy a file or a folder. Folders of a checkout that is read-only can be removed by the next call."""
    if source.is_file():
        shutil.copy2(source, place)
        return
    shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__"))
    for folder, _, _ in os.walk(place):
        Path(folder).chmod(0o755)


def handed() -> tuple[bool, Plan]:
    """Whether this job's call is a self-test, and that call's plan. Raises UserError where it is gone or damaged."""
    try:
        content = _json().validate_json((FOLDER / PLAN).read_bytes())
    except OSError as error:
        raise UserError(f"{FOLDER / PLAN}: cannot be read: {error.strerror}; give the same call again") from None
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(f"{FOLDER / PLAN}: {where}: damaged, or of another version; give the same call again") from None
    return content.selftest, _plan_of(content)


def as_read(plan: Plan) -> Plan:
    """The plan as its jobs read it, for the driver: a whole number may be a float there, and be written as one."""
    return _plan_of(_json().validate_json(_written(plan, selftest=False)))


def _written(plan: Plan, selftest: bool) -> bytes:
    content = Handed(plan, selftest, plan.site.file if plan.site else "")
    # A config says what was given: a comparison may name some keys only where it has a command.
    return _json().dump_json(content, exclude_unset=True)


def _plan_of(content: Handed) -> Plan:
    site = content.plan.site
    return replace(content.plan, site=read_from(site, content.site_file)) if site else content.plan


def last(config: Config, because: UserError) -> Plan:
    """The plan of the last call, for one that only reads and cannot plan, with `because` as its warning.

    Raises `because` where the last call had another config, or where its plan cannot be read.
    """
    with suppress(UserError):
        plan = handed()[1]
        if plan.config == config:
            return replace(plan, warnings=[f"{because}; shown is the plan of the last call"])
    raise because
