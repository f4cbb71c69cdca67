"""All calls of Slurm's commands.

Every function raises UserError, with one line, where a command is missing or fails. It raises Unavailable, a subclass,
where Slurm's controller gives no answer in time. Standard library only, because jobs use this module as well.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from relay.base.errors import NoCluster, NoNode, Unavailable, UserError
from relay.chain.slurm import GONE, environment, fields_of, number_of, unix_seconds
from relay.slurm.answers import Answer, meaning

TIMEOUT_SECONDS = 60.0  # for all tries of a command together; a busy controller may need most of it
TRIES = 4
PAUSE_SECONDS = 5.0
# The message of Slurm's commands on a machine without a configured cluster, where another try would not help.
_UNCONFIGURED = re.compile("could not establish a configuration source", re.I)
KEPT_CONFIGURATION = "TORCH_RELAY_SLURM_CONF"
DRIVER_JOB = "TORCH_RELAY_DRIVER_IS_A_JOB"  # set in the environment of such a driver, and of its jobs
_STARTERS = ("salloc", "slurmstepd")
_SEPARATOR = "\x1f"  # ASCII's unit separator does not occur in paths, names or comments
_ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}
_ENDED |= {"REVOKED", "TIMEOUT"}
_STARTED = {"RUNNING", "COMPLETING", "CONFIGURING", "RESIZING", "SIGNALING", "STAGE_OUT"}
_IDS_PER_CALL = 500  # well below the length of a command line
_AWAY = re.compile("down|drain|fail|maint|reserved|reboot|unknown|inval")  # how the names of such states begin


@dataclass(frozen=True)
class QueuedJob:
    """A job that waits, runs or is ending.

    `comment` comes from Snakemake's executor: the rule and its wildcards. `reason` is Slurm's reason why a job waits.
    `start` is when it started, or is expected to, as Slurm prints it.
    """

    id: str
    name: str
    state: str
    folder: str
    comment: str
    reason: str = ""
    start: str = ""

    @property
    def starts_at(self) -> float | None:
        """When it started, or is expected to, in seconds since 1970; None where Slurm does not say."""
        return unix_seconds(self.start)

    @property
    def condition(self) -> str:
        """Its state, and why it waits where Slurm says so: RUNNING, PENDING (JobHeldUser)."""
        return f"{self.state} ({self.reason})" if self.reason not in ("", "None") else self.state


def available() -> bool:
    """Whether jobs can be submitted from here."""
    return shutil.which("sbatch") is not None


def is_over(job_id: str) -> bool:
    """Whether a job has ended, or Slurm has forgotten it. Tried once."""
    its_state = state(job_id)
    return its_state is None or ended(its_state)


def state(job_id: str) -> str | None:
    """The state of a job that waits, runs or ended recently; None where Slurm has forgotten it. Tried once."""
    words = ["squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%A %i %T"]
    try:
        printed = _call(words, tries=1).stdout
    except UserError as error:
        if GONE.search(str(error)):
            return None
        raise
    return next(fields_of(job_id, printed), None)


def seconds_remembered() -> float | None:
    """The shortest time for which Slurm lists a job after its end; None where it never forgets one."""
    for line in _call(["scontrol", "show", "config"]).stdout.splitlines():
        if match := re.match(r"MinJobAge\s*=\s*(\d+)", line):
            return float(match.group(1)) or None
    return None


def jobs_named(prefix: str, folder: Path, tries: int = TRIES) -> list[QueuedJob]:
    """Of `jobs_of(folder)`, those whose name is `{prefix}_…`."""
    return [job for job in jobs_of(folder, tries) if job.name.startswith(f"{prefix}_")]


def jobs_of(folder: Path, tries: int = TRIES) -> list[QueuedJob]:
    """The user's unfinished jobs whose working directory is `folder`; oldest first."""
    place, unfinished = folder.resolve(), (job for job in mine(tries=tries) if not ended(job.state))
    return [job for job in unfinished if job.folder and Path(job.folder).resolve() == place]


def named(name: str) -> list[QueuedJob]:
    """The user's jobs of this name, also those that ended recently; oldest first. Tried once."""
    return mine(f"--name={name}", tries=1)


def driver_job() -> str | None:
    """The job that this driver is itself; None where it is none: a shell may have the variables of another one."""
    job = os.environ.get("SLURM_JOB_ID")
    return os.environ.get(DRIVER_JOB) or (job if job and _started_by_slurm(job) else None)


def _started_by_slurm(job: str) -> bool:
    """Whether a process above this one is one of Slurm's.

    Root's may be hidden from this user. Slurm then tells whether the job goes on, and counts where it does not answer.
    """
    process = os.getppid()
    while process:
        try:
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
        except OSError:
            with suppress(UserError):
                return not is_over(job)
            return True
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        if status["Name"] in _STARTERS:
            return True
        process = int(status["PPid"])
    return False


def any_other() -> bool:
    """Whether the user has an unfinished job beside the one that this driver is itself. Tried once."""
    own = driver_job()
    return any(not ended(job.state) and job.id != own for job in mine(tries=1))


def mine(*which: str, tries: int = TRIES) -> list[QueuedJob]:
    """All of the user's jobs, also those that ended recently; oldest first. `which` are flags of squeue."""
    # All states are asked for, because the names of unfinished states differ between versions.
    all_mine = ["squeue", "--noheader", "--me", "--states=all", *which, "--sort=i"]
    fields = ("%i", "%j", "%T", "%Z", "%k", "%r", "%S")
    printed = _call([*all_mine, f"--format={_SEPARATOR.join(fields)}"], tries=tries).stdout
    rows = (line.replace("(null)", "").split(_SEPARATOR) for line in printed.splitlines())
    return [QueuedJob(*row) for row in rows if len(row) == len(fields)]  # a greeting of the site's has not these


def ended(state: str) -> bool:
    """Whether a job in this state is over, however it ended."""
    return state in _ENDED


def waits(state: str) -> bool:
    """Whether a job in this state waits: it has not started, or was interrupted and may go on."""
    return state not in _STARTED | _ENDED


def expected_start(flags: Sequence[str], partition: str | None = None) -> datetime | None:
    """When a job with these flags of `sbatch` would start if it were submitted now. Nothing is submitted.

    None where Slurm accepts the job and names no time. Raises UserError with Slurm's reason where it would refuse it,
    NoNode where it would queue it until nodes (of `partition`, if they are named) are back, or take it once the
    partition is open again, and Unavailable where it would take it once other jobs of this user's are over.
    """
    try:
        result = _call(["sbatch", "--test-only", *flags, "--wrap=true"])
    except UserError as error:
        answer = meaning(str(error))
        if answer in (Answer.NO_NODE, Answer.CLOSED):
            raise NoNode(str(error)) from None
        if "invalid partition" in str(error).lower():
            partitions = _call(["sinfo", "--noheader", "--all", "--format=%R"]).stdout.split()
            raise UserError(f"{error}; allowed: {', '.join(partitions)}") from None
        if answer is Answer.NO_SUCH_NODE and (away := _away(partition)):
            raise NoNode(f"{error}; {away}") from None
        if answer is Answer.FULL and any_other():
            raise Unavailable(str(error)) from None
        raise
    match = re.search(r"to start at (\S+)", result.stderr + result.stdout)
    seconds = unix_seconds(match.group(1)) if match else None
    return None if seconds is None else datetime.fromtimestamp(seconds).astimezone()


def _away(partition: str | None) -> str:
    """How many nodes are down, drained or reserved, in words; '' where all are there."""
    named = [f"--partition={partition}"] if partition else ["--all"]
    lines = _call(["sinfo", "--noheader", "--Node", "--format=%N %T", *named]).stdout.splitlines()
    # A node has a line for each of its partitions.
    states = dict(words for line in lines if len(words := line.split()) == 2)
    away = sorted({state.rstrip("*~#!%$@^-+") for state in states.values() if _AWAY.match(state)})
    count = sum(bool(_AWAY.match(state)) for state in states.values())
    of = f" of partition {partition}" if partition else ""
    return f"away are {count} of {len(states)} nodes{of} ({', '.join(away)})" if away else ""


def show_job(job_id: str, tries: int = TRIES) -> dict[str, str]:
    """The values of `scontrol show job` by name: NumNodes, NumTasks, CPUs/Task, MinMemoryNode, TresPerNode, …"""
    jobs = [
        dict(word.split("=", 1) for word in line.split() if "=" in word)
        for line in _call(["scontrol", "--oneliner", "show", "job", job_id], tries=tries).stdout.splitlines()
    ]
    # One job of an array has the array's id too: Slurm then shows all of them.
    return next((job for job in jobs if job.get("JobId") == job_id), jobs[0] if jobs else {})


def cancel(ids: Sequence[str], tries: int = TRIES) -> None:
    """Cancel these jobs. Jobs that have already ended are no error."""
    for start in range(0, len(ids), _IDS_PER_CALL):
        try:
            _call(["scancel", *ids[start : start + _IDS_PER_CALL]], tries=tries)
        except UserError as error:
            if not GONE.search(str(error)):
                raise


def requeue(job_id: str) -> None:
    """Make Slurm end a batch job and start its script again under the same id. Tried once."""
    _call(["scontrol", "requeue", job_id], tries=1)


def submit(script: str, flags: Sequence[str]) -> str:
    """Submit the text of a batch script with these flags of `sbatch`, and return the job's id.

    Tried once: a second try could submit the job twice.
    """
    try:
        printed = _call(["sbatch", "--parsable", *flags], script, tries=1).stdout
    except Unavailable as error:
        raise Unavailable(f"{error}; look with `squeue --me` whether it was submitted all the same") from None
    if (job := number_of(printed)) is None:
        raise UserError(f"sbatch: no job's number in what it printed: {printed.strip()!r}; look with `squeue --me`")
    return job.partition(";")[0]


def keep_configuration() -> None:
    """Copy SLURM_CONF to a variable that reaches the jobs: inside a job, Snakemake's executor removes SLURM_CONF."""
    if "SLURM_CONF" in os.environ:
        os.environ[KEPT_CONFIGURATION] = os.environ["SLURM_CONF"]


def restore_configuration() -> None:
    """Set SLURM_CONF to the value that `keep_configuration` kept, unless SLURM_CONF is set."""
    if KEPT_CONFIGURATION in os.environ:
        os.environ.setdefault("SLURM_CONF", os.environ[KEPT_CONFIGURATION])


def _call(command: Sequence[str], stdin: str = "", tries: int = TRIES) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands. Where the controller gives no answer, try again while tries and time are left."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while True:
        started = time.monotonic()
        try:
            return _run(command, stdin, end - started)
        except NoCluster:
            raise
        except Unavailable:
            tries -= 1
            now = time.monotonic()
            if tries < 1 or now + PAUSE_SECONDS + (now - started) > end:
                raise
            time.sleep(PAUSE_SECONDS)


def _run(command: Sequence[str], stdin: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands once. Raises UserError, however it fails."""
    program = command[0]
    try:
        result = subprocess.run(
            command,
            check=False,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            env=environment(program),
        )
    except FileNotFoundError:
        raise UserError(f"{program}: no such command on PATH; load Slurm's module, or log in to the cluster") from None
    except OSError as error:
        raise UserError(f"{program}: cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        remedy = "Slurm's controller is busy or down (`scontrol ping`); try again later"
        raise Unavailable(f"{program}: no answer within {TIMEOUT_SECONDS:g} s; {remedy}") from None
    if result.returncode:
        lines = [re.sub(rf"^{program}: (error: )?", "", line.strip()) for line in result.stderr.splitlines()]
        message = "; ".join(line for line in lines if line) or f"exit status {result.returncode}"
        if _UNCONFIGURED.search(message):
            raise NoCluster(
                f"{program}: no cluster is configured on this machine (no slurm.conf); log in to the cluster"
            )
        away = meaning(message) in (Answer.NOT_TAKEN, Answer.LOST)
        raise (Unavailable if away else UserError)(f"{program} failed: {message}")
    return result
