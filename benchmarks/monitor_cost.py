"""What looking at a run's processes costs: its speed with the looks over that without, in turns, and their CPU time.

Also what observing steps costs: the time of an observed step over that of those that are timed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from common import report, short_run
from loop import product

from relay.process import machine
from relay.process.ranks import Ranks
from relay.run_folder.attempts import parsed
from relay.run_folder.places import dataset_folder
from relay.run_folder.samples import samples_path
from relay.run_folder.step_split import StepSplit
from relay.spec.run import Run, changed


def train(run: Run, ranks: Ranks, dataset: Path, work: Path) -> tuple[float, float]:
    """A step's seconds in the steps that are timed, and the CPU seconds of all that the process did meanwhile."""
    began = time.process_time()
    return product(run, ranks, dataset, work), time.process_time() - began


def looks(work: Path) -> tuple[int, float]:
    """How many looks a run had, and the CPU seconds of the thread that made them."""
    found = [parsed(line) or {} for line in samples_path(work, 1, 0).read_bytes().splitlines()]
    return sum(len(line.get("looks", ())) for line in found), found[-1]["cost_seconds"]


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--global-batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--monitor-seconds", type=float, default=1.0)
    given = parser.parse_args()
    machine.set_threads(given.threads, 1)
    ranks = Ranks.join("cpu", "gloo")
    ratios, observed, shares, each_look = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        comparison = {"strategy": "cpu", "global_batch_size": given.global_batch_size, "cpus_per_task": given.threads}
        config = {"task": "lenet-synthetic", "comparisons": [comparison]}
        plain = short_run(config, given.steps, Path(folder))
        dataset = dataset_folder(Path(folder), plain.dataset)
        plain = changed(plain, monitor_seconds=0.0, observed_steps=0)
        watched = changed(plain, monitor_seconds=given.monitor_seconds, observed_steps=min(20, given.steps // 20))
        train(plain, ranks, dataset, Path(folder) / "warm-up")
        for place in range(given.rounds):
            without, _ = train(plain, ranks, dataset, Path(folder) / f"plain-{place}")
            work = Path(folder) / f"watched-{place}"
            seconds, spent = train(watched, ranks, dataset, work)
            count, cost = looks(work)
            ratios.append(without / seconds)
            shares.append(cost / spent)
            each_look.append(cost / count)
            if split := StepSplit.read(work):
                observed.append(split.seconds / seconds)
    report(
        "speed with looks over speed without", ratios,
        looks_of_cpu_time=round(statistics.median(shares), 6),
        cpu_milliseconds_of_a_look=round(1000 * statistics.median(each_look), 3),
        observed_step_over_timed=round(statistics.median(observed), 4) if observed else None,
        monitor_seconds=given.monitor_seconds, global_batch_size=given.global_batch_size, threads=given.threads,
    )  # fmt: skip
    ranks.leave()


if __name__ == "__main__":
    main()
