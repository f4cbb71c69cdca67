"""Looks at what a run uses of its nodes while it trains: CPU time, memory, GPUs. One thread on each node does it.

The thread is part of the node's first process. A process of its own would need memory and CPU time for an interpreter,
would have to be ended with the run, and would compete for the same CPUs. A look takes less than a millisecond of
Python; NVML's calls let the training go on meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relay.process import usage
from relay.process.gpus import Gpus, uuids
from relay.process.ranks import Ranks
from relay.process.usage import Usage
from relay.process.watch import Watch
from relay.run_folder.samples import samples_path
from relay.spec.run import Training


@contextmanager
def monitored(run: Training, ranks: Ranks, work: Path, attempt: int) -> Iterator[None]:
    """While this lasts, look at each node every `monitor_seconds`, and record what is seen. Collective."""
    seconds = run.length.monitor_seconds
    if seconds and not usage.KNOWN:
        if ranks.rank == 0:
            print("note: what the run uses of its node is not recorded: this system has no /proc", flush=True)
        seconds = 0.0
    told = ranks.gather((os.getpid(), uuids(ranks.devices))) if seconds else []
    if not seconds or ranks.local_rank != 0:
        yield
        return
    processes, gpus = zip(*told[ranks.rank : ranks.rank + run.shape.processes_per_node], strict=True)
    watch = Watch(
        samples_path(work, attempt, ranks.rank),
        Usage(processes, run.feeding.data_workers if run.feeding.loader == "dataloader" else 0),
        Gpus([uuid for of_process in gpus for uuid in of_process]),
        cpus=run.shape.cpus_per_node,
        seconds=seconds,
    )
    watch.begin()
    try:
        yield
    finally:
        watch.end()
