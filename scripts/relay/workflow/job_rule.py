"""A rule whose jobs run in a stack's environment, as the parts that Snakemake takes of it.

All these rules are the rule `look` in `workflow/rules/card.smk` with other parts. The shell command of a job, such as a
gate's on a cluster, is made of them:

    before     module load CUDA/12.6;
    program    python main.py gate --reference … --spec results/…/gate.json --output results/…/verdict.json
               --attempt 1
    beside     --beside GATE:REFERENCE …
"""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relay.environments import login_node
from relay.slurm import counters, shapes
from relay.spec.run import Specification
from relay.workflow.asked import OfJob, asked, with_signature
from relay.workflow.call import Call


@dataclass(frozen=True, kw_only=True)
class JobRule:
    """What is known of all jobs of one rule.

    A job computes what its specification says: the one of `specifications` whose id is the job's `wildcard`. It lies in
    the file `spec`, which the driver has written, or in `writes`, which the job itself writes first; {} is its id.
    `command` is one of `relay.commands`; `options` are its own, and `beside` those that are known only when the job
    starts. `words` says what the job does. `cpus` are those that a job keeps busy of which nothing is measured, so that
    others may run beside it; without them, the job is alone. `turns` are further resources.
    """

    call: Call
    command: str
    wildcard: str
    specifications: Mapping[str, Specification]
    words: OfJob
    spec: str = ""
    writes: str = ""
    options: OfJob = lambda job: []
    beside: OfJob | None = None
    output: bool = True
    cpus: OfJob | None = None
    turns: Mapping[str, OfJob] = field(default_factory=dict)

    def of(self, job: Any) -> Specification:
        """A job's specification."""
        return self.specifications[getattr(job, self.wildcard)]

    @property
    def params(self) -> dict[str, Any]:
        """Snakemake asks each function for each job, also in a dry run of thousands: texts, where these are enough."""
        site, beside = self.call.site, self.beside
        params: dict[str, Any] = {
            "before": _late(self._before) if site or self.writes else "",
            "program": lambda wildcards, output: Late(lambda: self._program(wildcards, output)),
            "words": _late(self.words),
            "beside": _late(lambda wildcards: shlex.join(beside(wildcards))) if beside else "",
            **({"memory": _late(self._memory)} if site else {}),
        }
        return _with_signatures(params)

    @property
    def resources(self) -> dict[str, Any]:
        """What the job asks of Slurm, where it goes there."""
        measured = self._measured if self.cpus else self.call.at_once
        own = {"attempt": lambda wildcards, attempt: attempt, "measured": measured, **self.turns}
        if self.call.site is None:
            return _with_signatures({"runtime": self.call.config.runtime_minutes, **self.call.temporary, **own})
        names = [*shapes.RESOURCES, *counters.all_counters(self.call.site)]
        return _with_signatures({name: self._resource(name) for name in names} | own)

    @asked
    def conda(self, wildcards: Any) -> str | None:
        """The software of the job, which documents it for Snakemake."""
        return self.call.plan.conda(self.of(wildcards).stack, self.call.root)

    def _spec(self, job: Any) -> str:
        return (self.spec or self.writes).format(getattr(job, self.wildcard))

    def _before(self, wildcards: Any) -> str:
        """Loads the modules of the job's stack after the site's own, or activates conda; writes the specification.

        Snakemake's `envmodules` takes no function. A module that cannot be loaded stops the job later, with a line: its
        processes look for it.
        """
        specification = self.of(wildcards)
        job = self.call.job_requests.plan.job(specification)
        load = login_node.load_command(job.environment["stack_modules"], job.environment) if job else ""
        if not self.writes:
            return load
        path, text = Path(self._spec(wildcards)), shlex.quote(self.call.text(specification))
        folder, file = (shlex.quote(str(each)) for each in (path.parent, path))
        return f"{load}mkdir -p {folder}; printf '%s\\n' {text} > {file}; "

    def _program(self, wildcards: Any, output: Any) -> str:
        spec = self._spec(wildcards)
        files = [*(["--spec", spec] if spec else []), *(["--output", output] if self.output else [])]
        return self.call.relay(self.command, *self.options(wildcards), *files)

    def _measured(self, wildcards: Any, attempt: int) -> int:
        """How much it takes of what a measured job takes all of. One that is tried again is alone, as others' faults
        may be its."""
        assert self.cpus
        cpus = self.cpus(wildcards)
        return min(self.call.at_once, cpus) if attempt == 1 or not cpus else self.call.at_once

    def _resource(self, name: str) -> OfJob:
        return lambda wildcards: self.call.job_requests.resources(self.of(wildcards)).get(name)

    def _memory(self, wildcards: Any) -> str:
        megabytes = self.call.job_requests.resources(self.of(wildcards))["mem_mb"]
        return f"{megabytes} MB a node" if megabytes else "no memory"


def _with_signatures(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: with_signature(part) if callable(part) else part for name, part in parts.items()}


@dataclass(frozen=True)
class Late:
    """A text that is made when the command is: Snakemake asks for a job's params before it knows what is to be done."""

    make: Callable[[], str]

    def __str__(self) -> str:
        return self.make()


def _late(part: OfJob) -> OfJob:
    return lambda wildcards: Late(lambda: part(wildcards))
