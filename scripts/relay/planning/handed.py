"""What the jobs of a call are handed: its plan and, on a cluster, the workflow, as they were when the call began.

Snakemake starts itself again in each job. If that planned from today's files, an edit would leave waiting jobs without
their runs. Only one driver at a time works on a folder, and it waits for the jobs of an earlier one: there is one plan.
"""

from __future__ import annotations

import os
import pickle
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.base.files import remove
from relay.config.config import Config
from relay.planning.plan import Plan
from relay.run_folder.trust import keep_to_owner, make_own, unsafe_above, untrusted

FOLDER = Path("results/code/call")  # where only the user may write: jobs run what lies there
PLAN = "plan.pickle"
WORKFLOW = ("Snakefile", "workflow", "scripts", "config", "envs")


def hand_over(plan: Plan, *, selftest: bool, workflow: Any) -> None:
    """Write down a call's plan for its jobs. Those on nodes run a copy of the workflow, and read no config of today."""
    partial = FOLDER.with_name(f".{FOLDER.name}")
    remove(partial)  # of a driver that was killed
    make_own(partial)
    if plan.site:
        for name in WORKFLOW:
            _copy(plan.root / name, partial / name)
    (partial / PLAN).write_bytes(pickle.dumps((selftest, plan)))
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
    """Whether this job's call is a self-test, and the plan of that call. Raises UserError where it is gone."""
    try:
        selftest, plan = pickle.loads((FOLDER / PLAN).read_bytes())
    except OSError as error:
        raise UserError(f"{FOLDER / PLAN}: cannot be read: {error.strerror}; give the same call again") from None
    return selftest, plan


def last(config: Config, because: UserError) -> Plan:
    """The plan of the last call, for one that only reads and cannot plan, with `because` as its warning.

    Raises `because` where the last call had another config, or where another user could have written its plan.
    """
    trusted = config.checkpoint_writers
    with suppress(Exception):  # gone, or of another version of this project
        if not unsafe_above(FOLDER / PLAN, trusted) and not untrusted(FOLDER, trusted):
            plan = handed()[1]
            if plan.config == config:
                return replace(plan, warnings=[f"{because}; shown is the plan of the last call"])
    raise because
