"""One call of Snakemake: what all its rules have to know of it."""

import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from relay.base import entry
from relay.config.config import Config
from relay.driver.job_requests import JobRequests
from relay.launch import gpus
from relay.planning import table
from relay.planning.plan import Plan
from relay.process.cpus import granted
from relay.slurm.held import Held
from relay.spec.run import Probe, Run, Specification
from relay.spec.site import Site
from relay.status.page import GATES, SPOT_CHECKS
from relay.status.watch import Watch
from relay.workflow import searches

RESULTS = Path("results")
OWN_FOLDER = "system_tmpdir"  # Snakemake's word for its own folder of temporary files


@dataclass(frozen=True)
class Call:
    """What the rules have to know of a call. `again` plans it anew, from what was measured meanwhile; `gpus` counts
    this machine's."""

    workflow: Any
    plan: Plan
    selftest: bool = False
    held: Held | None = None
    again: Callable[[], Plan] | None = None
    gpus: Callable[[], int] = gpus.count_gpus

    @property
    def config(self) -> Config:
        return self.plan.config

    @property
    def site(self) -> Site | None:
        return self.plan.site

    @cached_property
    def root(self) -> Path:
        """The folder of the Snakefile."""
        return Path(self.workflow.basedir)

    @property
    def drives(self) -> bool:
        """Whether this process is the driver: Snakemake starts itself again in each job."""
        return bool(self.workflow.is_main_process)

    @cached_property
    def job_requests(self) -> JobRequests:
        """What its jobs ask Slurm for, with what is learnt of it while they run."""
        return JobRequests(self.plan)

    @cached_property
    def runs(self) -> dict[str, Run]:
        return {run.id: run for run in self.plan.runs}

    @cached_property
    def unmeasured(self) -> dict[str, Run]:
        """The first run of each setting whose speed decides how long its jobs are, by the setting's id."""
        return {run.setting_id: run for run in self.plan.unmeasured}

    @cached_property
    def probes(self) -> dict[str, Probe]:
        return searches.batch_searches(self.plan)

    @cached_property
    def searches(self) -> dict[str, Probe]:
        return searches.depth_searches(self.plan)

    @cached_property
    def temporary(self) -> dict[str, str]:
        """Where rules of this machine keep temporary files, as a resource.

        It is Snakemake's own folder for them, unless the user has chosen another one by `--default-resources`. Where
        rules say nothing of it, Snakemake evaluates an expression for each job.
        """
        given = self.workflow.resource_settings.default_resources or {}
        own = "tmpdir" not in given or getattr(given["tmpdir"], "raw", None) == OWN_FOLDER
        return {"tmpdir": tempfile.gettempdir()} if own else {}

    @cached_property
    def at_once(self) -> int:
        """How many jobs run side by side on this machine of which nothing is measured: in a self-test, one for each
        CPU that they use. One that is measured takes all of the resource `measured`, as anywhere."""
        if not self.selftest or self.site or not self.drives:
            return 1
        return min(len(granted()), self.workflow.resource_settings.cores or 1)

    @cached_property
    def proofs(self) -> dict[str, list[str]]:
        """The ids of what proves the runs, by the folder of their verdicts."""
        return {GATES: [*self.plan.gates], SPOT_CHECKS: [*self.plan.spot_checks]}

    def text(self, specification: Specification) -> str:
        """What a job is told to compute, as its file has it."""
        return json.dumps(specification.to_dict(self.job_requests.plan.job(specification)))

    def relay(self, *command: Any) -> str:
        """A shell command that starts one of `relay`'s, of this call's own project."""
        return shlex.join(entry.words(sys.executable, self.root, *map(str, command)))

    def strategies_as_targets(self) -> Sequence[str]:
        """The names of the plan's strategies. Ends the process where another rule has one of them."""
        if taken := next(filter(self.workflow.is_rule, self.plan.strategies), None):
            sys.exit(f"error: config: comparisons: '{taken}' is the name of a target; give the command another `name`")
        return self.plan.strategies

    def had_jobs_of(self, rule: str) -> bool:
        """Whether this call had a job of that rule to do."""
        jobs = self.workflow.dag.needrun_jobs(exclude_finished=False)
        return any(job.rule.name == rule for job in jobs)

    @cached_property
    def watch(self) -> Watch:
        """How the runs stand."""
        return Watch(
            self.plan.runs,
            names=partial(table.words_by_id, self.plan),
            ends=lambda run: None if run.setting_id in self.unmeasured else self.plan.segments(run),
            results=RESULTS,
            on_slurm=self.site is not None,
        )
