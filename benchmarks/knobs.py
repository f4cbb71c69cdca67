"""What huge pages, other memory allocators and OpenMP's knobs do for the speed of a run on CPUs, in turns.

Each is compared with the same run as the product trains it. Of a library that is not
installed (jemalloc, tcmalloc) nothing is measured.
"""

import argparse
import statistics
import tempfile
from ctypes.util import find_library
from pathlib import Path

from common import DATA, report, short_run, trained

from relay.spec.run import changed

WARM = 10  # steps, in which memory is asked for
KNOBS = {
    "huge pages": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    "glibc as it is": {"MALLOC_CHECK_": "0"},  # for the product it is then the user who decides
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
    parser.add_argument("--knobs", nargs="+", choices=KNOBS, default=[*KNOBS], metavar="KNOB", help=", ".join(KNOBS))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as named:
        results = Path(named)
        comparison = {"strategy": "cpu", "cpus_per_task": given.threads, "global_batch_size": given.global_batch_size}
        config = {"task": given.task, "comparisons": [comparison]}
        run = changed(short_run(config, given.steps, results, given.data), observed_steps=0)
        installed = {name: KNOBS[name] for name in given.knobs if all(KNOBS[name].values())}
        if not installed:
            parser.exit(1, f"left out: not installed: {', '.join(given.knobs)}\n")
        ratios: dict[str, list[float]] = {name: [] for name in installed}
        speeds = []
        for _ in range(given.rounds):
            speeds.append(trained(run, results, after=WARM))
            for name, variables in installed.items():
                ratios[name].append(trained(run, results, variables, after=WARM) / speeds[-1])
    best = max(ratios, key=lambda name: statistics.median(ratios[name]))
    report("speed with the best knob over that without any", ratios[best], best=best,
           samples_per_second=round(statistics.median(speeds)),
           knobs={name: round(statistics.median(measured), 3) for name, measured in ratios.items()},
           not_installed=sorted({*given.knobs} - {*installed}), task=given.task,
           global_batch_size=given.global_batch_size, threads=given.threads)  # fmt: skip


if __name__ == "__main__":
    main()
