"""A new call of Snakemake: its config is read, its site found, its plan made. A mistake is a line for each."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from relay.base import lifeline
from relay.base.entry import not_allowed
from relay.base.errors import UserError
from relay.card import looks
from relay.config import reading, shrink
from relay.config.config import Config, load
from relay.driver import first_look, full_disk
from relay.launch import gpus
from relay.planning import handed, table
from relay.planning.inputs import Here
from relay.planning.plan import Plan
from relay.planning.planner import May, make_plan
from relay.run_folder import results_folder
from relay.slurm import commands, counters
from relay.slurm.held import Held
from relay.spec.site import Site, leave_to_slurm, load_site, site_of
from relay.training import changed_code
from relay.workflow import searches, selftest_plan, unready
from relay.workflow.call import RESULTS, Call

# Snakemake tells its targets only after the Snakefile is read. These need no speed that is not measured yet.
UNPLANNED = {"card", "plan", "probe", "status", searches.LARGEST_MODEL}


def check_defaults(workflow: Any) -> None:
    """End with a line for a mistake in config/config.yaml, before Snakemake reads it, whose words do not name it.

    So does a call in which another workflow has this one as a module: jobs are handed a copy of the whole project.
    """
    root, its = Path(__file__).resolve().parents[3], Path(workflow.basedir, "scripts")
    if not (its.is_dir() and its.samefile(root / "scripts")):
        sys.exit(
            f"error: {workflow.main_snakefile}: Torch Relay is no module of another workflow; "
            f"give `snakemake -s {root / 'Snakefile'}` in your own folder, whose config and results it then uses"
        )
    # What imports and planning make stays. Looking through it again and again for garbage took a seventh of a dry run.
    gc.freeze()
    gc.set_threshold(100_000)
    if workflow.remote_exec:  # in a Slurm job
        lifeline.end_with_shell()
    full_disk.show_no_tracebacks_of_logs()
    with _in_a_line():
        reading.read_config(_defaults(workflow))


def new_call(workflow: Any) -> Call:
    """The call that the Snakefile is read for. In a job, it is the driver's."""
    with _in_a_line():
        if not workflow.is_main_process:
            chosen, plan = handed.handed()
            return Call(workflow, plan, chosen)
        call = _planned(workflow, sys.argv[1:])
    for line in _lines(call):
        print(line, file=sys.stderr)
    if call.site:
        leave_to_slurm(call.site, os.environ)
        # Snakemake keeps the sum over all jobs that it has submitted at these.
        for name, counter in counters.all_counters(call.site).items():
            workflow.register_resource(name, counter.most)
    return call


@contextmanager
def _in_a_line() -> Iterator[None]:
    try:
        yield
    except looks.NotKnown as error:  # no mistake: something is to be done first
        print(error, file=sys.stderr)
        sys.exit(0)
    except (UserError, PermissionError) as error:
        sys.exit(f"error: {not_allowed(error) or error}")
    except KeyboardInterrupt:
        sys.exit("error: interrupted")


def _defaults(workflow: Any) -> Path:
    return Path(workflow.basedir) / "config" / "config.yaml"


def _planned(workflow: Any, words: list[str]) -> Call:
    """The driver's own plan. `words` are those of its command line. Raises UserError, and NotKnown."""
    root = Path(workflow.basedir)
    chosen = selftest_plan.chosen(workflow.config_settings, root, words)
    given = reading.given_config(workflow, _defaults(workflow))
    config = shrink.applied(load(given))
    site = _site(config, workflow, root)
    results_folder.refuse_other(RESULTS)
    held, count = None if site else Held.here(), cache(gpus.count_gpus)
    sharing = gpus.of_this_machine(count) if chosen and not site and config.device != "cpu" else gpus.ALONE
    may: May = "read" if first_look.only_reads(words) else "look" if first_look.dry(words) else "prepare"

    def planned(config: Config) -> Plan:
        here = Here.of(config, site, held=held, gpus=count, sharing=sharing)
        return make_plan(config, here, root=root, may=may)

    try:
        plan = planned(config)
    except UserError as error:
        plan = _without_planning(config, root, words, error)
    for file in selftest_plan.further(workflow.config_settings, root) if chosen else ():
        plan = selftest_plan.with_gates(plan, planned(load(given | reading.read_config(file))))
    if not UNPLANNED & {*words}:
        plan.check_measured()
    unready.check(plan)
    if plan.looks and "status" in words:
        raise looks.NotKnown(*table.unknown(plan))
    return Call(workflow, handed.as_read(plan), chosen, held, partial(planned, config), count)


def _site(config: Config, workflow: Any, root: Path) -> Site | None:
    name = config.site or site_of(workflow.resource_settings.default_resources or {})
    site = load_site(name, root) if name else None
    return counters.beside_driver(site) if site and commands.driver_job() else site


def _without_planning(config: Config, root: Path, words: list[str], why: UserError) -> Plan:
    """A plan for a call that only reads, where none can be made. Raises `why` for any other call."""
    if not first_look.only_reads(words):
        raise why
    if "status" in words:
        return handed.last(config, because=why)
    names = dict.fromkeys(each.strategy for each in config.comparisons)  # enough for a list
    return Plan(config, root, None, [*names], warnings=[str(why)])


def _lines(call: Call) -> Iterator[str]:
    """What the user is told of a call before anything is done."""
    if call.selftest and not call.site:
        yield f"self-test on {selftest_plan.described(call.plan, call.gpus)}"
    if call.held:
        yield f"{call.held.words}; no more is planned with"
    for warning in [*call.plan.warnings, *changed_code.warnings(call.plan.runs, RESULTS)]:
        yield f"warning: {warning}"
