"""The one place that calls Slurm's commands. Standard library only: jobs read their end here, too.

Every function raises UserError, one line, where a command is missing or refuses, and its subclass Unavailable where
Slurm's controller gives no answer in time.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from relay.base.errors import NoCluster, Unavailable, UserError

TIMEOUT_SECONDS = 60.0  # for all tries of a command; a busy controller answers late, one that is down never
TRIES = 4
PAUSE_SECONDS = 5.0
#: What the commands say where nothing is wrong with what was asked. scontrol's word for it is the last one.
_TRANSIENT = re.compile(
    "unable to contact|timed out|connection refused|socket|zero bytes|in standby mode|unexpected message received", re.I
)
#: Slurm's commands are installed here, and no cluster is configured: to ask again would change nothing.
_UNCONFIGURED = re.compile("could not establish a configuration source", re.I)
KEPT_CONFIGURATION = "TORCH_RELAY_SLURM_CONF"
_SEPARATOR = "\x1f"  # ASCII's unit separator: in no path, name or comment
_ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}
_ENDED |= {"REVOKED", "TIMEOUT"}
_STARTED = {"RUNNING", "COMPLETING", "CONFIGURING", "RESIZING", "SIGNALING", "STAGE_OUT"}
_IDS_PER_CALL = 500  # well below the length of a command line
_UNKNOWN_JOB = "Invalid job id"


@dataclass(frozen=True)
class QueuedJob:
    """A job that waits, runs or is ending.

    `comment` is what the executor plugin puts there: rule and wildcards. `reason` is why it waits, in Slurm's words.
    """

    id: str
    name: str
    state: str
    folder: str
    comment: str
    reason: str = ""

    @property
    def condition(self) -> str:
        """Its state, and why it waits where Slurm says so: RUNNING, PENDING (JobHeldUser)."""
        return f"{self.state} ({self.reason})" if self.reason not in ("", "None") else self.state


@dataclass(frozen=True)
class WaitingJob:
    """A job that does not run. `reason` is why, in Slurm's words: Priority, Resources, JobHeldUser, …"""

    id: str
    state: str
    reason: str


def available() -> bool:
    """Whether jobs can be submitted from here."""
    return shutil.which("sbatch") is not None


def end_time(job_id: str) -> float | None:
    """When the job's time is up, in seconds since 1970, or None where the queue tells none (pending, or no limit).

    Asked of the queue because SLURM_JOB_END_TIME is not set in the steps of older versions.
    """
    told = _of_job(job_id, "%e")
    return _seconds(told) if told else None


def state(job_id: str) -> str | None:
    """The state of a job that waits, runs, or ended a while ago; None where Slurm does not know it any more."""
    return _of_job(job_id, "%T")


def _of_job(job_id: str, field: str) -> str | None:
    try:
        words = _output(["squeue", "--noheader", "--states=all", f"--jobs={job_id}", f"--format={field}"]).split()
    except UserError as error:
        if _UNKNOWN_JOB in str(error):
            return None
        raise
    return words[0] if words else None


def seconds_remembered() -> float | None:
    """How long Slurm lists a job after its end at least; None where it forgets none."""
    for line in _output(["scontrol", "show", "config"]).splitlines():
        if found := re.match(r"MinJobAge\s*=\s*(\d+)", line):
            return float(found.group(1)) or None
    return None


def jobs_named(prefix: str, folder: Path, tries: int = TRIES) -> list[QueuedJob]:
    """The user's own jobs that are not over, named `{prefix}_…` and submitted for `folder`; oldest first."""
    fields = _SEPARATOR.join(["%i", "%j", "%T", "%Z", "%k", "%r"])
    # All states, because the names of those that are not over differ between versions.
    command = ["squeue", "--noheader", "--me", "--states=all", "--sort=i", f"--format={fields}"]
    lines = _call(command, tries=tries).stdout.splitlines()
    jobs = [QueuedJob(*line.replace("(null)", "").split(_SEPARATOR)) for line in lines if line.strip()]
    place = folder.resolve()
    return [
        job
        for job in jobs
        if job.name.startswith(f"{prefix}_") and job.state not in _ENDED and Path(job.folder).resolve() == place
    ]


def waiting(name: str) -> list[WaitingJob]:
    """The user's own jobs of this name that have not started, or are suspended; oldest first. Asked once."""
    fields = _SEPARATOR.join(["%i", "%T", "%r"])
    command = ["squeue", "--noheader", "--me", f"--name={name}", "--sort=i", f"--format={fields}"]
    lines = _call(command, tries=1).stdout.splitlines()
    jobs = [WaitingJob(*line.split(_SEPARATOR)) for line in lines if line.strip()]
    return [job for job in jobs if waits(job.state)]


def waits(state: str) -> bool:
    """Whether a job in this state has not started, or was interrupted and is not over."""
    return state not in _STARTED | _ENDED


def expected_start(flags: Sequence[str]) -> datetime | None:
    """When a job with these flags of `sbatch` would start if it were submitted now; nothing is submitted.

    None where Slurm accepts the job and names no time. Raises UserError with Slurm's reason where it would refuse it.
    """
    result = _call(["sbatch", "--test-only", *flags, "--wrap=true"])
    match = re.search(r"to start at (\S+)", result.stderr + result.stdout)
    seconds = _seconds(match.group(1)) if match else None
    return None if seconds is None else datetime.fromtimestamp(seconds).astimezone()


def show_job(job_id: str) -> dict[str, str]:
    """What `scontrol show job` says of a job: NumNodes, NumTasks, CPUs/Task, MinMemoryNode, TresPerNode and so on."""
    words = _output(["scontrol", "--oneliner", "show", "job", job_id]).split()
    return dict(word.split("=", 1) for word in words if "=" in word)


def cancel(ids: Sequence[str], tries: int = TRIES) -> None:
    """Cancel these jobs; those that are over already are no error."""
    for start in range(0, len(ids), _IDS_PER_CALL):
        try:
            _call(["scancel", *ids[start : start + _IDS_PER_CALL]], tries=tries)
        except UserError as error:
            if _UNKNOWN_JOB not in str(error):
                raise


def requeue(job_id: str) -> None:
    """Let Slurm end this batch job and start it again from its script, under the same id. Tried once."""
    _call(["scontrol", "requeue", job_id], tries=1)


def submit(script: str, flags: Sequence[str]) -> str:
    """Submit a batch script (its text) with these flags of `sbatch`; returns the job's id. Tried once."""
    try:
        return _call(["sbatch", "--parsable", *flags], script, tries=1).stdout.strip().split(";")[0]
    except Unavailable as error:
        raise Unavailable(f"{error}; look with `squeue --me` whether it was submitted all the same") from None


def keep_configuration() -> None:
    """Let the jobs that this process submits know its SLURM_CONF, which Snakemake's step in a job removes."""
    if "SLURM_CONF" in os.environ:
        os.environ[KEPT_CONFIGURATION] = os.environ["SLURM_CONF"]


def restore_configuration() -> None:
    """Put back the SLURM_CONF that `keep_configuration` kept, where there is none."""
    if KEPT_CONFIGURATION in os.environ:
        os.environ.setdefault("SLURM_CONF", os.environ[KEPT_CONFIGURATION])


def _seconds(text: str) -> float | None:
    """A time as Slurm prints it, in seconds since 1970; None for N/A, Unknown, NONE and the like."""
    if text.isdigit():
        return float(text)
    try:
        return datetime.fromisoformat(text).timestamp()  # local time, from a version that ignores SLURM_TIME_FORMAT
    except ValueError:
        return None


def _environment() -> dict[str, str]:
    """Without the user's defaults that filter or reshape what the commands print; times as seconds since 1970."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SQUEUE_", "SCANCEL_"))}
    return {**kept, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


def _output(command: Sequence[str]) -> str:
    return _call(command).stdout


def _call(command: Sequence[str], stdin: str = "", tries: int = TRIES) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands to its end, again where its controller gives no answer, and there is time for it."""
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
    """Run one of Slurm's commands once. Raises UserError in all the ways it can fail."""
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
            env=_environment(),
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
        said = "; ".join(line for line in lines if line) or f"exit status {result.returncode}"
        if _UNCONFIGURED.search(said):
            raise NoCluster(
                f"{program}: no cluster is configured on this machine (no slurm.conf); log in to the cluster"
            )
        raise (Unavailable if _TRANSIENT.search(said) else UserError)(f"{program} failed: {said}")
    return result
