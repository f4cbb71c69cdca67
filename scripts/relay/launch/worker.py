"""One process of a job: `python -m relay.launch.worker training.trainer WORK --help`.

The role is the module below `relay` that the process runs: `training.trainer`, `equivalence.gate`,
`equivalence.reference`, `probe.process` or `preflight.facts`. It is imported under guard, so that a stack that cannot
be imported is a recorded fault as well.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from relay.process import cpus
from relay.run_folder import faults


def work(program: list[str]) -> None:
    """Run the role's main function: `program` is the role, its work directory, and its arguments."""
    role, directory, *arguments = program
    cpus.settle()
    faults.guarded(Path(directory), lambda: import_module(f"relay.{role}").main(arguments))


if __name__ == "__main__":
    work(sys.argv[1:])
