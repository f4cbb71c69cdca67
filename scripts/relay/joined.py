"""One process of a run among its peers, from its first step to its end: the same whatever its role."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relay import machine, strategies
from relay.job import Job
from relay.ranks import Ranks
from relay.run import Run
from relay.task import set_precision


@contextmanager
def joined(specification: Path) -> Iterator[tuple[Run, Ranks]]:
    """The run of a specification, and this process's place in it, once it has what the run declares. Collective.

    The strategy's service lasts as long. At the end all wait for each other, and the process ends. Raises UserError
    where what was granted is not what was declared.
    """
    run = Run.read(specification)
    machine.set_threads(run.threads, run.interop_threads)
    set_precision(run.precision)
    with strategies.load(run.strategy).service(run.id, run.device):
        ranks = Ranks.join(run.device, run.backend, run.devices_per_process)
        machine.check_granted(run, ranks, Job.read(specification))
        yield run, ranks
        ranks.barrier()  # nobody needs the service, or a device, any more
    ranks.leave()
