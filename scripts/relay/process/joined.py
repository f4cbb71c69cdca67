"""What every process of a run does around its work, whatever its role: join the others, and leave with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from relay.process import machine
from relay.process.ranks import Ranks
from relay.spec.job import Job
from relay.spec.run import Training

Service = Callable[[Training], AbstractContextManager[None]]


@contextmanager
def joined(specification: Path, service: Service) -> Iterator[tuple[Training, Ranks]]:
    """Read the run of a specification, join its processes, and check what was granted. Collective.

    Yields the run and this process's ranks. At the end, all processes wait for each other; then this process exits.
    `service` is a context that the run's strategy needs on the node while its processes live.
    Raises UserError where nodes, devices, CPUs or memory are not those declared.
    """
    run = Training.read(specification)
    machine.set_threads(run.shape.threads, run.shape.interop_threads)
    machine.set_precision(run.computation.precision)
    with service(run):
        ranks = Ranks.join(run.shape.device, run.shape.backend, run.shape.devices_per_process)
        machine.check_granted(run, ranks, Job.read(specification))
        yield run, ranks
        ranks.barrier()  # after it, no process needs the service or a device any more
    ranks.leave()
