"""A batch script that asks for a job and trains in it: what `sbatch` is given."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from relay.base.ending import INTERRUPTED
from relay.base.printable import printable
from relay.spec.job import Job

MOST_IN_ARRAY = 1000


@dataclass(frozen=True, kw_only=True)
class BatchScript:
    """A job, or `jobs` of them in a chain, that runs `command` in `folder`.

    `comments` are lines above the request. `output` is the log's pattern, in Slurm's notation. `site_flags` are flags
    that every job of the site has: its reservation, and its mail.
    """

    name: str
    job: Job
    jobs: int
    command: Sequence[str]
    folder: Path
    output: Path
    comments: Sequence[str] = ()
    site_flags: Sequence[str] = ()

    @property
    def block(self) -> str:
        """The lines that ask: `#SBATCH …`."""
        return "\n".join(_in_a_line(f"#SBATCH {line}") for line in self._directives())

    @property
    def to_fill_in(self) -> list[str]:
        """Lines for what the job does not name and a cluster may want. Slurm reads them with one # less."""
        unknown = [f"##SBATCH --{flag}=NAME" for flag in ("partition", "account") if not getattr(self.job, flag)]
        return ["# If your cluster wants them, fill in these names, and take away one #:", *unknown] if unknown else []

    def render(self) -> str:
        """The whole script."""
        lines = [
            "#!/bin/bash",
            *(_in_a_line(f"# {line}") for line in self.comments),
            self.block,
            *self.to_fill_in,
        ]
        if self.jobs > 1:
            lines.append("# A chain: one job at a time. Each goes on from the last checkpoint, and saves in time.")
        if self.jobs > MOST_IN_ARRAY:
            lines.append(
                f"# Slurm allows {MOST_IN_ARRAY} jobs by default (MaxArraySize): if it refuses, give longer jobs."
            )
        lines += ["set -eo pipefail", f"cd {shlex.quote(str(self.folder))}", *_activation(self.job)]
        return "\n".join([*lines, *self._training()]) + "\n"

    def _training(self) -> Iterator[str]:
        command = shlex.join(self.command)
        if self.jobs == 1:
            yield f"exec {command}"
            return
        yield f'{command} --attempt "$SLURM_ARRAY_TASK_ID" && exit || status=$?'
        yield f'if [ "$status" -eq {INTERRUPTED} ] && [ "$SLURM_ARRAY_TASK_ID" -lt {self.jobs} ]; then'
        yield "    exit  # it has saved, and the next job of the chain goes on"
        yield "fi"
        yield 'exit "$status"'

    def _directives(self) -> Iterator[str]:
        yield f"--job-name={re.sub(r'[^A-Za-z0-9_.+-]', '_', self.name)}"
        yield from asked(self.job, self.site_flags)
        if self.jobs > 1:
            yield f"--array=1-{self.jobs}%1"
        yield f"--output={_quoted(self.output)}"


def asked(job: Job, site_flags: Sequence[str] = ()) -> Iterator[str]:
    """What a job asks for, as flags of sbatch; `site_flags` are those that every job of the site has."""
    for flag in ("partition", "account", "qos", "constraint"):
        if value := getattr(job, flag):
            yield f"--{flag}={value}"
    yield from site_flags
    yield f"--nodes={job.nodes}"
    yield f"--ntasks={job.tasks}"
    yield f"--ntasks-per-node={job.tasks_per_node}"
    yield f"--cpus-per-task={job.cpus_per_task}"
    if job.job_gpus:
        yield job.job_gpus
    if job.memory_mb:
        yield f"--mem={job.memory_mb}M"
    yield f"--time={_clock(job.minutes)}"


def _in_a_line(text: str) -> str:
    """A text without line's ends: what follows one would be a command of the script."""
    return " ".join(printable(text).splitlines())


def _clock(minutes: int) -> str:
    """Minutes as Slurm writes them, such as 01:30:00 or 2-00:00:00."""
    days, rest = divmod(minutes, 24 * 60)
    clock = f"{rest // 60:02d}:{rest % 60:02d}:00"
    return f"{days}-{clock}" if days else clock


def _quoted(path: Path) -> str:
    """A path in a directive, where Slurm understands double quotes around blanks, and a % in a file's name."""
    text = str(Path(*(part.replace("%", "%%") for part in path.parts[:-1]), path.name))
    return f'"{text}"' if " " in text else text


def _activation(job: Job) -> Iterator[str]:
    """The lines that load modules and activate conda, as the workflow's own jobs do."""
    environment = job.environment
    if modules := list(dict.fromkeys([*environment.get("modules", ()), *environment.get("stack_modules", ())])):
        yield f"module purge; module load {shlex.join(modules)}"  # as Snakemake begins the jobs
    if environment["mode"] != "conda":
        return
    conda = environment.get("conda_folder") or environment["conda"]
    yield f'eval "$(conda shell.bash hook)"; conda activate {shlex.quote(conda)}'
