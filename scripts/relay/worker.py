"""One process of a job: `python -m relay.worker trainer WORK --help` (or `gate`, `reference`, `preflight`).

The module is imported under guard, so that a stack that cannot even be imported is a recorded fault as well.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from relay import cpus, faults

MODULES = {"preflight": "relay.preflight.facts"}


def work(program: list[str]) -> None:
    """Run the role's main function: `program` is the role, its work directory, and its arguments."""
    role, directory, *arguments = program
    cpus.settle()
    module = MODULES.get(role, f"relay.{role}")
    faults.guarded(Path(directory), lambda: import_module(module).main(arguments))


if __name__ == "__main__":
    work(sys.argv[1:])
