"""One process of a job: `python -m relay.launch.worker training.trainer WORK --help`.

The role is the module below `relay` that the process runs, such as `training.trainer` or `equivalence.gate`. It is
imported inside the guard, so that a failed import of the stack is recorded as a fault, too.
"""

import faulthandler
import gc
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

from relay.base import lifeline
from relay.launch import fork_server
from relay.process import cpus
from relay.run_folder import together, watchdog

# torch imports its compiler when the first optimizer is made. Imported later than all else, its many objects would be
# looked through for garbage while training, which makes small steps slower by a tenth and more.
COMPILER = "torch._dynamo"
WITHOUT_OPTIMIZER = ("preflight.facts", "script.process")


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


@contextmanager
def importing() -> Iterator[None]:
    """Import torch, and what needs it, within this.

    It leaves no garbage, and looking for some would take a sixth of the time. What was imported stays: it is not
    looked through later, either.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    gc.freeze()


def imported(role: str) -> ModuleType:
    """The module of a worker's role, such as `training.trainer`, with what torch would import for it later."""
    with importing():
        module = import_module(f"relay.{role}")
        if role not in WITHOUT_OPTIMIZER:
            import_module(COMPILER)
    return module


if __name__ == "__main__":
    if os.environ.get(fork_server.OWNER, "0") != "0":
        lifeline.follow_launcher()
        fork_server.hand_over(sys.argv[1:])
    work(sys.argv[1:])
