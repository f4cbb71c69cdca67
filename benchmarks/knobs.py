"""What huge pages, other memory allocators and OpenMP's knobs do for the speed of a run on CPUs, in turns.

Each is compared with the same run in usual pages, as glibc and OpenMP are without being told anything. Huge pages are
an axis (`huge_pages`). Of a library that is not installed (jemalloc, tcmalloc) nothing is measured.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from ctypes.util import find_library
from dataclasses import replace
from pathlib import Path

from common import DATA, report, trained, unpacked, workflow_run, written

from relay.spec.run import changed

GIB = 2**30
WARM = 10  # steps, in which memory is asked for
KNOBS = {
    "glibc keeps what is freed": {"MALLOC_MMAP_THRESHOLD_": str(GIB), "MALLOC_TRIM_THRESHOLD_": str(4 * GIB)},
    "torch's own huge pages": {"THP_MEM_ALLOC_ENABLE": "1"},
    "jemalloc": {"LD_PRELOAD": find_library("jemalloc") or ""},
    "tcmalloc": {"LD_PRELOAD": find_library("tcmalloc_minimal") or ""},
    "threads bound to cores": {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"},
    "threads that wait busily": {"OMP_WAIT_POLICY": "active"},
}


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="lenet-cifar10")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder with archives of public data")
    parser.add_argument("--global-batch-size", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as named:
        results, root = Path(named), None
        if given.task.endswith("cifar10"):
            root = unpacked("cifar-10-batches-py.tar.xz", results / "archive", given.data)
        comparison = {"strategy": "cpu", "cpus_per_task": given.threads, "global_batch_size": given.global_batch_size}
        run = workflow_run({"task": given.task, "comparisons": [comparison]}, results, root=root)
        length = replace(run.length, total_steps=given.steps, evaluate_every_steps=given.steps + 1, observed_steps=0)
        run = replace(run, length=length)
        usual, huge = (written(changed(run, id=str(pages), huge_pages=pages), results) for pages in (False, True))
        known = {name: told for name, told in KNOBS.items() if all(told.values())}
        ratios: list[float] = []
        others: dict[str, list[float]] = {name: [] for name in known}
        speeds = []
        for _ in range(given.rounds):
            speeds.append(trained(usual, results, after=WARM))
            ratios.append(trained(huge, results, after=WARM) / speeds[-1])
            for name, told in known.items():
                others[name].append(trained(usual, results, told, after=WARM) / speeds[-1])
    report("speed in huge pages over that in usual ones", ratios, samples_per_second=round(statistics.median(speeds)),
           others={name: round(statistics.median(found), 3) for name, found in others.items()},
           not_installed=sorted({*KNOBS} - {*known}), task=given.task, global_batch_size=given.global_batch_size,
           threads=given.threads)  # fmt: skip


if __name__ == "__main__":
    main()
