"""What every process of a run does around its work, whatever its role: join the others, and leave with them."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NoReturn

from relay.base.errors import EndedItself
from relay.process import machine
from relay.process.ranks import Ranks
from relay.spec import arithmetic
from relay.spec.job import Job
from relay.spec.run import Training

Service = Callable[[Training], AbstractContextManager[None]]


@contextmanager
def joined(specification: Path, service: Service = lambda _: nullcontext()) -> Iterator[tuple[Training, Ranks]]:
    """Read the run of a specification, join its processes, and check what was granted. Collective.

    Yields the run and this process's ranks. At the end, all processes wait for each other; then this process exits.
    `service` is a context that the run's strategy needs on the node while its processes live.
    Raises UserError where nodes, devices, CPUs, memory, or what changes the arithmetic, are not those declared.
    """
    run = Training.read(specification)
    arithmetic.check(f"{run.kind} {run.id}", run.place)
    machine.set_threads(run.shape.threads, run.shape.interop_threads)
    if run.shape.device == "cpu":
        machine.keep_freed_memory()
    machine.set_precision(run.computation.precision)
    with service(run):
        ranks = Ranks.join(run.shape.device, run.shape.backend, run.shape.devices_per_process)
        machine.check_granted(run, ranks, Job.read(specification))
        machine.check_precision(run, run.computation.precision, ranks.device)
        with _not_ended_within():
            yield run, ranks
        ranks.barrier()  # after it, no process needs the service or a device any more
    ranks.leave()


@contextmanager
def _not_ended_within() -> Iterator[None]:
    """An error where the code within ends the process: from outside that looks like a lost node, and is tried again.

    Raises EndedItself in place of `sys.exit` and `os._exit`. Children of this process, and other threads, end as ever.
    """
    exit_process, process = os._exit, os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() != process or threading.current_thread() is not threading.main_thread():
            exit_process(status)
        raise EndedItself(f"os._exit({status}) was called in the middle of the work; return, or raise an error")

    os._exit = refuse
    try:
        yield
    except SystemExit as error:
        message = f"sys.exit({error.code!r}) was called in the middle of the work; return, or raise an error"
        raise EndedItself(message) from error
    finally:
        os._exit = exit_process
