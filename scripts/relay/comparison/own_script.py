"""How a script of one's own is started as the recommended run was: launcher, threads and backend, as shell lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from relay.comparison import words
from relay.comparison.request import Request
from relay.process import meeting
from relay.spec.run import Run
from relay.spec.script import MEETING, filled, options_given, placeholders, started_by_torchrun

# As a measured run meets. `--standalone`, and backend c10d at an address, read pickles at a port that is open to all.
ON_ONE_NODE = (*meeting.TORCHRUN, "--rdzv-endpoint={folder}/agent")
ON_SEVERAL = ("--rdzv-backend=static", "--node-rank={node}", "--master-addr={address}", "--master-port={port}")
OF_JOB = {"node": "${SLURM_NODEID}", "address": "${MASTER_ADDR}", "port": "${MASTER_PORT}", "folder": "$(mktemp -d)"}


def own_script(run: Run, asked: Request) -> list[str]:
    """The lines, for a job that asks for what is `asked`. What the script has to do itself stands in comments.

    A command that was measured is started without this project, in the folder of the script.
    """
    script = run.strategy.script
    arguments = list(script.command) if script else ["torchrun", "your_script.py"]
    begin = started_by_torchrun(arguments)
    if begin is not None:
        arguments[begin:begin] = _meeting(arguments, begin, run)
    of_job = {**OF_JOB, "seed": str(run.seed), "repeat": "0"}
    command = " ".join(_in_shell(word, of_job) for word in arguments)
    return words.lines("own_script.sh.j2", run=run, asked=asked, command=command, folder=str(Path.cwd()))


def _meeting(arguments: Sequence[str], begin: int, run: Run) -> list[str]:
    """The options of torchrun that a command lacks."""
    given, shape = options_given(arguments, begin), run.shape
    count = [] if "--nproc-per-node" in given else [f"--nproc-per-node={shape.processes_per_node}"]
    if shape.nodes == 1:
        return [*count, *(() if given.keys() & {*MEETING} else ON_ONE_NODE)]
    if given.keys() & {"--rdzv-backend", "--rdzv-endpoint"}:
        return count
    nodes = [] if "--nnodes" in given else [f"--nnodes={shape.nodes}"]
    return [*nodes, *count, *(option for option in ON_SEVERAL if option.partition("=")[0] not in given)]


def _in_shell(word: str, of_job: Mapping[str, str]) -> str:
    """A word as a shell reads it: nothing in it is replaced but what a job knows."""
    if not set(placeholders([word])) & OF_JOB.keys():
        return shlex.quote(filled(word, of_job, last=True))
    escaped = re.sub(r'([\\"$`])', r"\\\1", word)
    return f'"{filled(escaped, of_job, last=True)}"'
