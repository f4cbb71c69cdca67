"""Snakemake's command line, for tests: the Slurm plugin looks after its jobs every second, not every 40 to 180."""

import sys

from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor


def pin(seconds: float) -> None:
    """Hold the interval between two looks at the queue, which the plugin lengthens as it goes."""
    name = "next_seconds_between_status_checks"
    if not hasattr(Executor, name):
        raise AttributeError(f"the Slurm plugin's Executor has no {name}: look up how this release sets its interval")
    setattr(Executor, name, property(lambda _: seconds, lambda *_: None))


if __name__ == "__main__":
    pin(1.0)
    main(sys.argv[1:])
