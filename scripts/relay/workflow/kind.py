"""A kind of job that runs in a stack's environment, as the parts of its rule; and how a command is written."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relay.base import entry
from relay.environments import login_node
from relay.slurm import shapes
from relay.spec import user_limits
from relay.workflow.call import Call, specification_text

OfJob = Callable[[Any], Any]  # a function of a job's wildcards


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The parts of the rule of one kind of job, which runs in the environment of its specification's stack.

    `command`: of `relay.commands`. `of` gives a job's specification, `words` what it does, `options` the command's own
    options, `beside` those that are known only when it starts. `written`: where the job itself writes its specification
    first; the driver has written the others. `measured`: how much it takes of the resource of that name, as a number or
    a function. `turns`: further resources.
    """

    call: Call
    command: str
    of: OfJob
    words: OfJob
    options: OfJob = lambda wildcards: []
    beside: OfJob | None = None
    written: OfJob | None = None
    output: bool = True
    measured: Any = 1
    turns: Mapping[str, OfJob] = field(default_factory=dict)

    @property
    def params(self) -> dict[str, Any]:
        """Snakemake asks each function for each job, also in a dry run of thousands: a text where one is enough."""
        site, beside = self.call.site, self.beside
        return {
            "before": self._before if site or self.written else "",
            "program": self._program,
            "words": self.words,
            "beside": (lambda wildcards: Late(lambda: words(*beside(wildcards)))) if beside else "",
            **({"memory": lambda wildcards: Late(lambda: self._memory(wildcards))} if site else {}),
        }

    @property
    def resources(self) -> dict[str, Any]:
        """What the job asks of Slurm, where it goes there."""
        own = {"attempt": lambda wildcards, attempt: attempt, "measured": self.measured, **self.turns}
        if self.call.site is None:
            return {"runtime": self.call.config.runtime_minutes, **own}
        names = [*shapes.RESOURCES, *user_limits.all_counters(self.call.site)]
        return {name: self._resource(name) for name in names} | own

    def conda(self, wildcards: Any) -> str | None:
        """The software of the job, which documents it for Snakemake."""
        return login_node.conda_directive(self.call.site, self.of(wildcards).stack, self.call.root)

    def _resource(self, name: str) -> OfJob:
        return lambda wildcards: self.call.job_requests.resources(self.of(wildcards)).get(name)

    def _before(self, wildcards: Any) -> str:
        """Loads the modules of the job's stack after the site's own, or activates conda; writes the specification.

        Snakemake's `envmodules` takes no function. A module that cannot be loaded stops the job later, with a line: its
        processes look for it.
        """
        specification = self.of(wildcards)
        job = self.call.job_requests.plan.job(specification)
        load = login_node.load_command(job.environment["stack_modules"], job.environment) if job else ""
        if self.written is None:
            return load
        path = Path(self.written(wildcards))
        text = specification_text(self.call, specification)
        return f"{load}mkdir -p {words(path.parent)}; printf '%s\\n' {words(text)} > {words(path)}; "

    def _program(self, wildcards: Any, output: Any) -> str:
        command = [*relay(self.call, self.command), *self.options(wildcards)]
        if self.written:
            command += ["--spec", self.written(wildcards)]
        return words(*command, *(["--output", output] if self.output else []))

    def _memory(self, wildcards: Any) -> str:
        megabytes = self.call.job_requests.resources(self.of(wildcards))["mem_mb"]
        return f"{megabytes} MB a node" if megabytes else "no memory"


@dataclass(frozen=True)
class Late:
    """A text that is made when the command is: Snakemake asks for a job's params before it knows what is to be done."""

    make: Callable[[], str]

    def __str__(self) -> str:
        return self.make()


def relay(call: Call, *command: str) -> list[str]:
    """The words that start a command of this call's own `relay`."""
    return entry.words(sys.executable, call.root, *command)


def words(*command: Any) -> str:
    """A command, quoted for the shell."""
    return shlex.join(map(str, command))
