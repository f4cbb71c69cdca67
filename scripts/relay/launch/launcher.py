"""Starts a run's processes and waits for them: on this machine, or on all nodes of the Slurm job that this runs in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from relay.base.ending import INTERRUPTED
from relay.base.errors import Unavailable, UserError
from relay.base.lifeline import end_with_parent
from relay.environments.node import needs_preparation
from relay.launch.command_lines import command
from relay.process.interruption import SIGNALS
from relay.run_folder import faults
from relay.slurm import allocation, commands
from relay.spec.job import Job
from relay.spec.run import Specification

USAGE = 2  # what programs exit with that do not understand their arguments


def launch(specification: Path, role: str, work: Path, arguments: Sequence[str], code: Path) -> int:
    """Run the processes to their end and return the launcher's exit status (negative: the signal that killed it).

    `specification` is a run.json, gate.json or reference.json; `role` is the worker's; faults are recorded in `work`.
    SIGTERM, SIGINT and SIGUSR2 are passed on, so that the processes can save and end by themselves.
    """
    commands.restore_configuration()
    run, job = Specification.read(specification), Job.read(specification)
    program = [role, str(work), *arguments]
    # What modules have put there is a part of the environment that they give.
    others = os.environ.get("PYTHONPATH") if job and job.environment.get("modules") else None
    path = os.pathsep.join(filter(None, [str(code.resolve()), others]))
    # torchrun would warn that it sets OMP_NUM_THREADS to 1; Snakemake exports its own idea of it.
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(run.shape.threads)}
    if job is None:
        return _wait_for(command(run, [sys.executable], program), environment)
    try:
        return _launch_steps(specification, job, program, work, environment)
    except Unavailable as error:  # a busy controller is no fault of the run's
        print(error, file=sys.stderr)
        return INTERRUPTED
    except UserError as error:
        faults.record(work, error)
        return 1


def _launch_steps(specification: Path, job: Job, program: list[str], work: Path, environment: Mapping[str, str]) -> int:
    """The job's steps, after a look at what was granted: the environment once on each node, then the processes.

    Raises UserError where the job is not the one declared.
    """
    job_id = os.environ.get("SLURM_JOB_ID")
    if job_id is None:
        raise UserError(f"{specification}: is for a Slurm job, and this runs in none: submit it through the workflow")
    allocation.check(job, commands.show_job(job_id))
    environment = {**environment, **allocation.end_variables(job)}
    step = [sys.executable, "-m", "relay.launch.step"]
    if needs_preparation(job.environment):
        once = allocation.srun(job, 1, job.tasks_per_node * job.cpus_per_task)
        status = _wait_for([*once, *step, "prepare", str(specification), str(work)], environment)
        if status != 0:
            return status
    tasks = allocation.srun(job, job.tasks_per_node, job.cpus_per_task)
    return _wait_for([*tasks, *step, "start", str(specification), *program], environment)


def _wait_for(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command to its end, passing signals on; its exit status."""
    child = subprocess.Popen(
        words,
        env=environment,
        preexec_fn=end_with_parent,  # noqa: PLW1509  # this process has one thread
    )

    passed: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        if passed:  # a second one would end torchrun's wait for processes that save
            return
        passed.append(number)
        # torchrun knows no SIGUSR2, and srun only shows its tasks on SIGINT; both hand SIGTERM to their processes.
        child.send_signal(number if number == signal.SIGINT and words[0] != "srun" else signal.SIGTERM)

    before = {number: signal.signal(number, pass_on) for number in SIGNALS}
    try:
        return child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
