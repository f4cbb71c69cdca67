"""One process of a job: `python -m relay.launch.worker training.trainer WORK --help`.

The role is the module below `relay` that the process runs: `training.trainer`, `equivalence.gate`,
`equivalence.reference`, `probe.process` or `preflight.facts`. It is imported inside the guard, so that a failed import
of the stack is recorded as a fault, too.
"""

from __future__ import annotations

import sys
from pathlib import Path

from relay.base import lifeline
from relay.launch.imports import imported
from relay.process import cpus
from relay.run_folder import faults


def work(program: list[str]) -> None:
    """Run the role's `main`. `program` has the role, its work directory, and its arguments."""
    role, directory, *arguments = program
    lifeline.follow_launcher()
    cpus.settle()
    faults.guarded(Path(directory), lambda: imported(role).main(arguments))


if __name__ == "__main__":
    work(sys.argv[1:])
