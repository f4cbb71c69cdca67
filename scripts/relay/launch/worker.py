"""One process of a job: `python -m relay.launch.worker training.trainer WORK --help`.

The role is the module below `relay` that the process runs: `training.trainer`, `equivalence.gate`,
`equivalence.reference`, `probe.process` or `preflight.facts`. It is imported inside the guard, so that a failed import
of the stack is recorded as a fault, too.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import sys
from pathlib import Path

from relay.base import lifeline
from relay.launch import fork_server
from relay.launch.imports import imported
from relay.process import cpus
from relay.run_folder import together, watchdog


def _tell_of_aborts(directory: Path) -> None:
    """What C++ ends, such as torch's NCCL watchdog, leaves where it was in the log, and no image of its memory.

    With TORCH_RELAY_CORE_FILES set, core files are written where the system allows them.
    """
    faulthandler.enable()
    watchdog.prepare(directory)
    if "TORCH_RELAY_CORE_FILES" not in os.environ:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def work(program: list[str]) -> None:
    """Run the role's `main`. `program` has the role, its work directory, and its arguments."""
    role, directory, *arguments = program
    lifeline.follow_launcher()
    cpus.settle()
    _tell_of_aborts(Path(directory))
    together.guarded(Path(directory), lambda: imported(role).main(arguments))


if __name__ == "__main__":
    if os.environ.get(fork_server.OWNER, "0") != "0":
        lifeline.follow_launcher()
        fork_server.hand_over(sys.argv[1:])
    work(sys.argv[1:])
