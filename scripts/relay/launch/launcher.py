"""Starts a run's processes and waits for them, on this machine or on all nodes of the current Slurm job."""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from relay.base.ending import INTERRUPTED
from relay.base.entry import SAFE_PATH
from relay.base.errors import Unavailable, UserError
from relay.base.lifeline import LAUNCHER
from relay.chain.supervisor import Supervisor
from relay.environments.login_node import environment_of
from relay.environments.node import interpreter, needs_preparation
from relay.environments.node_folder import own_folder
from relay.launch import fork_server
from relay.launch.command_lines import COMPILED, PORT, command, free_port
from relay.process import meeting, one_gpu, system
from relay.process.cpus import LIMITS
from relay.run_folder import faults
from relay.run_folder.attempts import LAUNCHED
from relay.run_folder.snapshot import freeze, planned
from relay.slurm import allocation, commands
from relay.spec.job import Job
from relay.spec.run import Specification, Training

ROOT = Path(__file__).resolve().parents[3]  # the locks of the stacks are below it
# For processes that save a large model after a signal. torchrun and `direct` end theirs after 600 s.
PATIENCE_SECONDS = 630.0
#: What a job's log says when the kernel has counted a process that it killed: `logs` in the known faults.
KILLED = "killed for memory: the kernel has killed {count} of this job's processes (oom_kill)"
USAGE = 2  # what programs exit with that do not understand their arguments

# Starts the processes of a specification, a role, in a folder, with arguments, on that code; returns their status.
Start = Callable[[Path, str, Path, Sequence[str], Path], int]


def launch(specification: Path, role: str, work: Path, arguments: Sequence[str], code: Path) -> int:
    """Run the processes to their end. Returns the exit status; a negative one is the signal that ended them.

    `specification` is the file of a run, gate, reference, probe or preflight. `role` is the module that a worker runs.
    Faults are recorded in `work`. `code` is the folder with the package `relay`.
    Signals are passed on, so that the processes can save and end by themselves.
    """
    commands.restore_configuration()
    run, job = Specification.read(specification), Job.read(specification)
    killed_before = system.memory_kills()
    program = [role, str(work), *arguments]
    environment = inherited(run, job, code)
    try:
        if job is not None:
            one_node = run.shape.launcher == "srun" and run.shape.nodes == 1  # this one
            with meeting.private_folder() if one_node else nullcontext() as folder:
                environment |= {PORT: str(free_port("")), **({meeting.VARIABLE: str(folder)} if folder else {})}
                return _understood(_launch_steps(specification, job, program, work, environment), work)
        if COMPILED not in environment:
            environment[COMPILED] = str(own_folder(Path(tempfile.gettempdir())) / "inductor")
        environment |= {LAUNCHER: str(os.getpid())}  # those that start several name theirs
        environment |= {LAUNCHED: str(time.time())}
        environment |= fork_server.owner(role, run.shape)
        python = interpreter(environment_of(None, run.stack, ROOT), Path())
        return _understood(_wait_for(command(run, python, program), environment), work)
    except Unavailable as error:  # a busy controller is not the run's fault, so that a retry is worthwhile
        print(error, file=sys.stderr)
        return INTERRUPTED
    except UserError as error:
        faults.record(work, error)
        return 1
    finally:
        if killed_before is not None and (count := (system.memory_kills() or 0) - killed_before) > 0:
            print(KILLED.format(count=count), file=sys.stderr, flush=True)


def inherited(run: Specification, job: Job | None, code: Path) -> dict[str, str]:
    """The environment of all processes: this process's, with what the run declares."""
    # Modules may set PYTHONPATH, which is then part of the software environment. Otherwise the user's is dropped.
    others = os.environ.get("PYTHONPATH") if job and job.environment.get("modules") else None
    path = os.pathsep.join(filter(None, [str(code.resolve()), others]))
    kept = {name: value for name, value in os.environ.items() if name not in LIMITS}
    # Snakemake exports an OMP_NUM_THREADS of its own, and without one torchrun sets it to 1 with a warning.
    declared = {SAFE_PATH: "1", "PYTHONPATH": path, "OMP_NUM_THREADS": str(run.shape.threads)}
    return kept | declared | one_gpu.variables(run.shape)


def started(
    spec: Path,
    role: str,
    results: Path,
    output: Path,
    arguments: Sequence[str],
    *,
    strategy_file: Path | None = None,
    start: Start = launch,
) -> int:
    """Start a proof's processes on the plan's code, which write `output`, in its folder; returns their status.

    What an earlier attempt wrote is removed. Raises UserError where the strategy's file cannot be read.
    """
    output.unlink(missing_ok=True)
    proof, folder = Specification.read(spec), results / "code"
    assert isinstance(proof, Training)
    name = planned(folder, proof).get("code")
    code = folder / name if name else freeze(strategy_file, proof.task.file, folder=folder)
    return start(spec, role, output.parent, ["--spec", str(spec), "--output", str(output), *arguments], code)


def _understood(status: int, work: Path) -> int:
    """An exit status as it is. Where a launcher refuses its arguments, that is recorded: a retry would repeat it."""
    if status == USAGE and not faults.of_ranks(work):
        faults.record(work, UserError("the launcher refuses its command line; the log has its words"))
    return status


def _launch_steps(specification: Path, job: Job, program: list[str], work: Path, environment: Mapping[str, str]) -> int:
    """Check what was granted, then run the job's steps: prepare the environment on each node, start the processes.

    Returns the exit status. Raises UserError outside of a Slurm job, and where Slurm granted too little.
    """
    job_id = os.environ.get("SLURM_JOB_ID")
    if job_id is None:
        raise UserError(f"{specification}: needs a Slurm job, but SLURM_JOB_ID is not set; submit it with the workflow")
    shown = commands.show_job(job_id)
    allocation.check(job, shown)
    environment = {**environment, **allocation.end_variables(job, shown)}
    step = [sys.executable, "-m", "relay.launch.step"]
    if needs_preparation(job.environment):
        once = allocation.srun(job, 1, job.tasks_per_node * job.cpus_per_task)
        status = _wait_for([*once, *step, "prepare", str(specification), str(work)], environment)
        if status != 0:
            return status
    tasks = allocation.srun(job, job.tasks_per_node, job.cpus_per_task)
    launched = {**environment, LAUNCHED: str(time.time())}
    return _wait_for([*tasks, *step, "start", str(specification), *program], launched)


def _wait_for(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command to its end, pass signals on to it, and return its exit status: -number of one that ended it."""
    with Supervisor(PATIENCE_SECONDS) as supervisor:
        supervisor.start(words, environment)
        status = supervisor.wait()
        return -supervisor.received[0] if supervisor.received and status else status
