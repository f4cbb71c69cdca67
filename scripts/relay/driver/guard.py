"""What keeps a driver safe: the process of Snakemake that starts jobs and waits for them.

One driver at a time works on a folder's results (`claim`). A restart waits for the jobs of a killed driver,
so that nothing is done twice (`orphans`). A signal that ends the driver ends its jobs (`end_jobs`). The Snakefile calls
`guard`, so that all this holds however Snakemake was started.
"""

import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

from snakemake.settings.enums import Quietness, RerunTrigger

from relay.base import lifeline
from relay.base.entry import SAFE_PATH
from relay.base.errors import UserError
from relay.driver import full_disk, patches
from relay.driver.claim import claim, say
from relay.driver.end_jobs import EndOnSignals, LocalJobs, SlurmJobs, end_before, interrupted
from relay.driver.orphans import POLL_SECONDS, wait_for_jobs, wait_for_processes
from relay.driver.retries import Retries
from relay.driver.terminal import Terminal
from relay.driver.view import View
from relay.slurm import commands
from relay.slurm.held import Held

UNFINISHED = "unfinished"  # the rule of files that ask for another one to be made anew
MEASURED = "measured"  # the resource of which a job that is measured takes one
PLAIN_SLURM = (
    "warning: executor slurm waits without end for jobs that are preempted or forgotten, and after an outage of Slurm. "
    "A restarted driver finds its jobs by --slurm-jobname-prefix only, and jobs run what the checkout holds when they "
    "start. Executor torch-relay does better"
)
JOB_FAILED = "At least one job did not complete successfully"  # of Snakemake, at the end


class Wants:
    """What a workflow wants of each call: as it stands, nothing. A workflow's own replaces what it has to say.

    Targets of `reading` change no results; like a dry run, they may be asked for beside a driver. `cluster` is the site
    that the jobs are planned for, None for this machine; the executor has to agree with it. `held` is the allocation
    that this process runs in, before whose end the call ends. From the files `first` the Snakefile learns what else
    there is to do: as long as there are any, they are made in place of the targets, and then the same call begins anew.
    `poll_seconds` are between two looks at the jobs of a killed driver.
    """

    reading: Collection[str] = ()
    cluster: str | None = None
    held: Held | None = None
    first: Collection[str] = ()
    retries: Callable[[Mapping[int, str]], Retries] = Retries
    poll_seconds: float = POLL_SECONDS

    def refused(self, targets: Collection[str]) -> Iterable[str]:
        """Why these targets cannot be made, a line for each reason; with any, dry runs are refused as well."""
        return ()

    def missing(self) -> Iterable[str]:
        """What has to be filled in first, a line for each; with any, only dry runs and `reading` are let through."""
        return ()

    def notes(self) -> Iterable[str]:
        """The lines with which a dry run ends."""
        return ()

    def prepare(self) -> None:
        """Do what is to be done before Snakemake looks at the files, once this driver is the only one."""


class Shows:
    """What a workflow shows of a call: as it stands, nothing. `dry`: targets of which a dry run shows `afterwards`."""

    dry: Collection[str] = ()

    def view(self) -> View | None:
        """What a terminal shows while jobs are under way, in place of Snakemake's lines about each."""
        return None

    def meanwhile(self, done: int, total: int) -> None:
        """What is done after each job that has ended well: `done` of `total` are."""

    def afterwards(self) -> Mapping[str, Callable[[], None]]:
        """By target, what is shown at the end of a call for it."""
        return {}

    def conclusion(self, targets: Collection[str]) -> tuple[str, bool]:
        """What is said last of the results of these targets ('' for nothing), and whether any can be used: if none can,
        the call has failed."""
        return "", True


def guard(workflow: Any, wants: Wants, shows: Shows) -> None:
    """Make this Snakemake workflow keep to what it wants. To be called in the Snakefile, by the main process alone.

    Snakemake tells only in `workflow.execute` whether it will run anything, and where, and builds its DAG after that:
    so this takes the place of `workflow.execute`. An `onstart:` in the Snakefile would replace the one set here.
    """
    patches.replace_execute(workflow, _Guarded(workflow, wants, shows))


class _Guarded:
    """What is called in place of `workflow.execute`."""

    def __init__(self, workflow: Any, wants: Wants, shows: Shows) -> None:
        self.workflow, self.wants, self.shows, self.execute = workflow, wants, shows, workflow.execute
        self.terminal = Terminal.of_this_call(workflow.output_settings)
        # In a job, Snakemake's executor begins by removing SLURM_CONF.
        self.at_start: list[Callable[[], None]] = [commands.restore_configuration]
        workflow.onstart(lambda log: [act() for act in self.at_start])

    def __call__(self, **given: Any) -> None:
        with full_disk.ends_call(Path.cwd()) as self.complaints:
            self._call(**given)

    def _call(self, *, executor_plugin: Any, executor_settings: Any, **others: Any) -> None:
        workflow, wants, settings = self.workflow, self.wants, executor_plugin.common_settings
        self.run = partial(self.execute, executor_plugin=executor_plugin, executor_settings=executor_settings, **others)
        self.executor, self.submitting = executor_plugin.name, settings.non_local_exec
        self.prefix, self.missing = getattr(executor_settings, "jobname_prefix", None), [*wants.missing()]
        targets, warnings = set(workflow.dag_settings.targets), [f"warning: {line}" for line in self.missing]
        _end_with(full_disk.unwritable(Path.cwd()), *wants.refused(targets))
        by_content(workflow)
        if wants.first:
            _say_all(*wants.notes())
            if not settings.dryrun_exec:
                self._first()
        elif settings.dryrun_exec:
            self._leave_unformatted()
            self.run()
            self._show(targets & set(self.shows.dry))
            _say_all(*wants.notes(), *warnings)  # at the end, where they are seen
        elif targets and targets <= set(wants.reading):
            self.run()
            self._show(targets)
            _say_all(*warnings)
        else:
            self._drive(targets or {"all"})

    def _leave_unformatted(self) -> None:
        """In a dry run, Snakemake formats each job's message and twice its command, also where nobody is shown them."""
        chosen = self.workflow.output_settings
        if chosen.verbose or self.terminal.only_hears:  # all is shown, or another logger may show it
            return
        for rule in self.workflow.rules:
            if rule.shellcmd and not chosen.printshellcmds:
                rule.shellcmd = ""
            if {Quietness.RULES, Quietness.ALL} & {*(chosen.quiet or ())}:
                rule.message = None

    def _first(self) -> None:
        """Make the files `first`, and begin this call anew, which finds them."""
        self.workflow.dag_settings.targets = {*self.wants.first}
        self._drive(())
        if all(Path(file).exists() for file in self.wants.first):
            os.execv(sys.executable, sys.orig_argv)

    def _drive(self, targets: Collection[str]) -> None:
        """Run as the folder's only driver; end with one line where that cannot be, or where it is interrupted."""
        _end_with(*self.missing, *_misplaced(self.wants.cluster, self.submitting))
        _say_all(*[PLAIN_SLURM] * (self.executor == "slurm"))
        commands.keep_configuration()
        try:
            self._run_alone(targets)
        except UserError as error:
            sys.exit(f"error: {error}")
        except (KeyboardInterrupt, Exception) as error:
            if not (interrupted() or isinstance(error, KeyboardInterrupt)):
                if JOB_FAILED in str(error):  # was told, with its reason
                    sys.exit(1)
                raise
            sys.exit("Stopped. What is finished or saved is kept. Give the same command again to continue.")

    def _run_alone(self, targets: Collection[str]) -> None:
        wants = self.wants
        # Jobs inherit it: their `python -m snakemake` would import from the folder of the config first.
        os.environ[SAFE_PATH] = "1"
        jobs = _take_over(self.workflow, self.submitting, self.prefix, wants.poll_seconds)
        wants.prepare()
        ending = EndOnSignals(jobs)
        self.at_start.append(ending.install)
        if wants.held:
            self.at_start.append(partial(end_before, wants.held))
        shown = self.terminal.driving(
            self.shows.view(),
            # Snakemake tells of no job whether its rule is a local one where all run on this machine.
            local=getattr(self.workflow, "_localrules", ()),
            site=wants.cluster,
            meanwhile=self.shows.meanwhile,
            submitting=self.submitting,
        )
        try:
            with shown, patches.replaced_restart_times(wants.retries(self.terminal.said_of).times):
                self.run()
            self._show(targets)
        finally:
            ending.finish()
            cut = self.workflow.dag_settings.until or self.workflow.dag_settings.omit_from  # it was to end before
            stopped = cut or interrupted() or self.complaints.led_to(sys.exception())
            said, usable = ("", True) if stopped else self.shows.conclusion(targets)
            _say_all(*filter(None, [said]))
        if not usable:
            sys.exit(1)

    def _show(self, targets: Collection[str]) -> None:
        afterwards = self.shows.afterwards()
        shown = sorted(set(targets) & afterwards.keys())
        failed = False
        for show in dict.fromkeys(afterwards[target] for target in shown):  # once, if several share it
            try:
                show()
            except CalledProcessError:  # it has said why; the others are shown nevertheless
                failed = True
        if failed:
            sys.exit(1)


def by_content(workflow: Any) -> None:
    """Let the files' content alone tell what is to be done (`status.finished`): not code, params or inputs, nor a note
    that their job was killed. Where a rule asks for a file of the rule `unfinished`, its output is made anew.
    """
    workflow.execution_settings.ignore_incomplete = True
    settings = workflow.dag_settings
    settings.rerun_triggers = frozenset({RerunTrigger.MTIME})
    if workflow.is_rule(UNFINISHED):  # else Snakemake takes it for a file
        settings.forcerun = {*settings.forcerun, UNFINISHED}


def _end_with(*wrong: str) -> None:
    """End the call where something is wrong."""
    if messages := [f"error: {line}" for line in wrong if line]:
        sys.exit("\n".join(messages))


def _say_all(*lines: str) -> None:
    for line in lines:
        say(line)


def _take_over(workflow: Any, submitting: bool, prefix: str | None, poll_seconds: float) -> SlurmJobs | LocalJobs:
    """Become the folder's only driver, once an earlier one's jobs are over; this driver's own jobs.

    Raises UserError where there is another driver.
    """
    folder = Path.cwd()
    claimed = claim(folder)
    if not submitting:
        if MEASURED not in workflow.global_resources:
            workflow.register_resource(MEASURED, 1)  # as the local profile has it: two at once would time each other
        # Snakemake's own lock would outlive a killed driver.
        workflow.execution_settings.lock &= not claimed.locked
        if claimed.left_by:
            wait_for_processes(folder, claimed.left_by)
        os.environ[lifeline.DRIVER] = lifeline.mark(folder)
        return LocalJobs()
    if not prefix:  # another executor than Slurm's, or jobs that could not be told from others'
        return LocalJobs()
    wait_for_jobs(folder, prefix, claimed.left_by, poll_seconds)
    return SlurmJobs(folder=folder, prefix=prefix)


def _misplaced(cluster: str | None, submitting: bool) -> list[str]:
    """What is wrong where the plan is for a cluster's nodes and the executor is not, or the other way round."""
    if cluster and not submitting:
        return [f"site: '{cluster}' is a cluster, and this profile submits nothing; use --profile profiles/slurm"]
    if submitting and not cluster:
        return ["site: missing; use a profile that names one, or give --config site=NAME (config/sites has them)"]
    return []
