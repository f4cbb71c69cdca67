"""The driver is the Snakemake process that submits jobs and waits for them.

    relay drive [here|tmux|job] [options] -- --profile profiles/slurm ddp

here: in this terminal. tmux: in a session of its own that outlives the login. job: as a small Slurm job; when its time
is up, it makes way and is queued again, and the next one carries on. All that follows `--` is Snakemake's.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any

from relay.base.entry import MAIN, ROOT
from relay.base.errors import UserError
from relay.config.reading import read_config
from relay.driver.claim import claim
from relay.driver.first_look import parsed
from relay.slurm import commands, shapes
from relay.spec.job import Job
from relay.spec.site import Site, load_site
from relay.spec.site import site_of as site_of_profile

DRIVE = (sys.executable, str(ROOT / MAIN), "drive")
USUAL_MINUTES = 1440
TMUX_TRIES = 20
TMUX_PAUSE_SECONDS = 0.1
HANDOVER_SECONDS = 120  # Slurm sends signals up to 60 s late
REQUEUE_TRIES = 10
REQUEUE_PAUSE_SECONDS = 10.0


def snakemake(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-P", "-m", "snakemake", *arguments]


def divided(words: list[str]) -> tuple[list[str], list[str] | None]:
    """Our own words, and Snakemake's; None without `--`."""
    if "--" not in words:
        return words, None
    place = words.index("--")
    return words[:place], words[place + 1 :]


def here(arguments: Sequence[str]) -> int:
    """Snakemake in the foreground, in this very process: signals reach it directly.

    Where it submits nothing, it works in the allocation that it is in.
    """
    submits = parsed(arguments).executor not in (None, "local")
    os.execvpe(sys.executable, snakemake(arguments), outside_of_slurm() if submits else dict(os.environ))


def outside_of_slurm() -> dict[str, str]:
    """The environment without this job's variables, which would be the defaults of the jobs submitted from it."""
    own = re.compile(r"(SLURM|SBATCH|SRUN)_(?!CONF$|CLUSTERS$)")
    return {name: value for name, value in os.environ.items() if not own.match(name)}


def in_tmux(arguments: Sequence[str]) -> int:
    """The driver in a detached tmux session: one for each folder, on a server of its own.

    A server that runs already would lend the session its own, old environment.
    """
    if shutil.which("tmux") is None:
        raise UserError("tmux: no such command on PATH; load its module, or use `relay drive job` or `… drive here`")
    parsed(arguments)
    folder = Path.cwd()
    name = f"relay-{re.sub('[^A-Za-z0-9_-]', '_', folder.name)}-{sha256(bytes(folder)).hexdigest()[:6]}"
    tmux = ["tmux", "-L", name]
    attach = shlex.join([*tmux, "attach"])
    panes = subprocess.run([*tmux, "list-panes", "-F", "#{pane_dead}"], check=False, capture_output=True, text=True)
    if panes.returncode == 0:
        if panes.stdout.split() == ["0"]:
            raise UserError(f"{folder}: a driver runs here in tmux already; look at it with: {attach}")
        subprocess.run([*tmux, "kill-server"], check=False)  # it only shows how the last one ended
    program = [*DRIVE, "here", "--", *arguments]
    # What the driver said last stays to be read after its end.
    keep = ["start-server", ";", "set-option", "-g", "remain-on-exit", "on", ";"]
    # tmux takes a word that ends in a semicolon for the end of a command.
    words = [re.sub(";$", r"\\;", word) for word in program]
    start_in_tmux([*tmux, *keep, "new-session", "-d", "-s", name, "--", *words])
    print(f"The driver runs in tmux. Look at it: {attach}   (leave it with Ctrl-B, then D)")
    return 0


def start_in_tmux(command: Sequence[str]) -> None:
    """Start the session. A server that has just been told to end may still answer, and then takes the call with it.

    Raises UserError.
    """
    for left in reversed(range(TMUX_TRIES)):
        started = subprocess.run(command, check=False, capture_output=True, text=True)
        if not started.returncode:
            return
        if left:
            time.sleep(TMUX_PAUSE_SECONDS)
    said = " ".join(started.stderr.split()) or f"status {started.returncode}"
    raise UserError(f"tmux: the session could not be started: {said}")


def as_job(arguments: Sequence[str], site: Site, minutes: int | None) -> int:
    """Submit the driver itself: one CPU, queued again whenever its time is up."""
    partition, _ = site.partition_for("cpu", 0, 1, minutes or USUAL_MINUTES)
    longest = partition.max_minutes if partition else None
    if minutes and longest and minutes > longest:
        allowed = f"{site.file} allows {longest}"
        raise UserError(f"--minutes {minutes}: {allowed}; ask for less: the driver is queued again when its time is up")
    minutes = minutes or min(USUAL_MINUTES, longest or USUAL_MINUTES)
    if missing := site.missing(minutes, [partition] if partition else []):
        raise UserError("\n".join(missing))
    job = Job(
        memory_mb=None if partition and not partition.asks_memory else site.memory_mb_per_cpu,
        minutes=minutes,
        partition=partition.name if partition else None,
        account=site.account,
        qos=site.qos,
    )
    flags = shapes.sbatch_flags(job, site)
    if partition and partition.whole_nodes:
        reason = f"{partition.shown} gives whole nodes: `relay drive tmux` takes none"
        print(f"warning: the driver needs one CPU, and {reason}")
    # The name must not look like one of the driver's own jobs, which start with "relay_".
    flags += ["--job-name=relay-driver", "--output=relay-driver-%j.log", "--open-mode=append"]
    flags += ["--requeue", f"--signal=B:USR1@{HANDOVER_SECONDS}"]
    claim(Path.cwd()).release()  # refused here where a driver is at work, and not in the job's log
    program = [*DRIVE, "inside", "--", *arguments]
    job_id = commands.submit(f"#!/bin/sh\nexec {shlex.join(program)}\n", flags)
    print(f"The driver is job {job_id}; it writes to relay-driver-{job_id}.log. End it with: scancel {job_id}")
    return 0


def inside(arguments: Sequence[str]) -> int:
    """The driver in its own job: passes signals on to Snakemake, but makes way for a successor on SIGUSR1."""
    job_id = os.environ["SLURM_JOB_ID"]
    # Snakemake inherits that, and so leaves its jobs alone where Slurm sends the signal to all processes of this job.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    # This job counts towards a user's limits, too.
    child = subprocess.Popen(snakemake(arguments), env=outside_of_slurm() | {commands.DRIVER_JOB: job_id})

    def pass_on(number: int, _: FrameType | None) -> None:
        child.send_signal(number)

    def make_way(_: int, __: FrameType | None) -> None:
        # Its jobs go on; the next driver waits for them, as it would after any sudden end.
        child.kill()
        print("The driver's time is up; it is queued again", flush=True)
        queue_again(job_id)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        signal.signal(number, pass_on)
    signal.signal(signal.SIGUSR1, make_way)
    return child.wait() and 1


def queue_again(job_id: str) -> None:
    """Queue this job again, also where the controller is busy just then: nobody else carries on. Raises UserError."""
    for left in reversed(range(REQUEUE_TRIES)):
        try:
            commands.requeue(job_id)
            return
        except UserError as error:
            if not left:
                raise
            print(f"warning: {error}; tries left: {left}", flush=True)
            time.sleep(REQUEUE_PAUSE_SECONDS)


def site_of(arguments: Sequence[str]) -> str:
    """The site that the workflow takes with these arguments: the config's, else the profile's, else `generic`.

    Raises UserError where a file or a value cannot be read.
    """
    from snakemake.cli import parse_config

    given = parsed(arguments)
    own = [] if given.replace_workflow_config else [ROOT / "config/config.yaml"]
    config: dict[str, Any] = {}
    for file in [*own, *(given.configfile or [])]:
        config |= read_config(Path(file))
    config |= parse_config(given.config)
    return str(config.get("site") or site_of_profile(given.default_resources or {}) or "generic")


def drive(parser: ArgumentParser, words: list[str]) -> int:
    """Parse the command line and start the driver."""
    parser.epilog = __doc__
    acts = ("here", "tmux", "job", "inside")
    parser.add_argument("where", nargs="?", choices=acts, metavar="{here,tmux,job}", default="here")
    parser.add_argument("--site", help="job: whose account and partition are used (that of the config or profile)")
    parser.add_argument("--minutes", type=int, help="job: the driver's own time limit (a day, if allowed)")
    own, to_snakemake = divided(words)
    given, arguments = parser.parse_args(own), to_snakemake or []
    if given.where == "tmux":
        return in_tmux(arguments)
    if given.where == "job":
        parsed(arguments)
        return as_job(arguments, load_site(given.site or site_of(arguments), ROOT), given.minutes)
    return inside(arguments) if given.where == "inside" else here(arguments)
