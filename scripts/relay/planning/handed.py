"""What the jobs of a call are handed: its plan and, on a cluster, the workflow, as they were when the call began.

Snakemake starts itself again in each job. If that planned from today's files, an edit would leave waiting jobs without
their runs. Only one driver at a time works on a folder, and it waits for the jobs of an earlier one: there is one plan.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from relay.base.errors import UserError
from relay.base.files import remove
from relay.chain.writers import keep_to_owner, make_own
from relay.config.config import Config
from relay.planning.plan import Plan
from relay.spec.site import read_from

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


def hand_over(plan: Plan, *, selftest: bool, workflow: Any) -> None:
    """Write down a call's plan for its jobs. Those on nodes run a copy of the workflow, and read no config of today."""
    partial = FOLDER.with_name(f".{FOLDER.name}")
    remove(partial)  # of a driver that was killed
    make_own(partial)
    if plan.site:
        for name in WORKFLOW:
            _copy(plan.root / name, partial / name)
    (partial / PLAN).write_bytes(_written(plan, selftest))
    keep_to_owner(partial)
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
        told = _json().validate_json((FOLDER / PLAN).read_bytes())
    except OSError as error:
        raise UserError(f"{FOLDER / PLAN}: cannot be read: {error.strerror}; give the same call again") from None
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(f"{FOLDER / PLAN}: {where}: damaged, or of another version; give the same call again") from None
    return told.selftest, _plan_of(told)


def as_read(plan: Plan) -> Plan:
    """The plan as its jobs read it, for the driver: a whole number may be a float there, and be written as one."""
    return _plan_of(_json().validate_json(_written(plan, selftest=False)))


def _written(plan: Plan, selftest: bool) -> bytes:
    told = Handed(plan, selftest, plan.site.file if plan.site else "")
    # A config says what was given: a comparison may name some keys only where it has a command.
    return _json().dump_json(told, exclude_unset=True)


def _plan_of(told: Handed) -> Plan:
    site = told.plan.site
    return replace(told.plan, site=read_from(site, told.site_file)) if site else told.plan


def last(config: Config, because: UserError) -> Plan:
    """The plan of the last call, for one that only reads and cannot plan, with `because` as its warning.

    Raises `because` where the last call had another config, or where its plan cannot be read.
    """
    with suppress(UserError):
        plan = handed()[1]
        if plan.config == config:
            return replace(plan, warnings=[f"{because}; shown is the plan of the last call"])
    raise because
