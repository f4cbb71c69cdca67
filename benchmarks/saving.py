"""What saving in the background costs: a run's speed with a checkpoint every few seconds over that without."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

from common import report, trained, workflow_run, written

from relay.spec.run import changed


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="lenet-synthetic")
    parser.add_argument("--every-seconds", type=float, default=5.0)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as named:
        results = Path(named)
        run = workflow_run({"task": given.task, "comparisons": [{"strategy": "cpu"}]}, results)
        run = replace(run, length=replace(run.length, total_steps=given.steps, evaluate_every_steps=given.steps + 1))
        plain, saving = (
            written(changed(run, id=name, checkpoint_minutes=minutes, observed_steps=0), results)
            for name, minutes in (("plain", 1000.0), ("saving", given.every_seconds / 60))
        )
        ratios, speeds = [], []
        for _ in range(given.rounds):
            speeds.append(trained(plain, results))
            ratios.append(trained(saving, results) / speeds[-1])
    report("speed with saving over that without", ratios, samples_per_second=round(statistics.median(speeds)),
           every_seconds=given.every_seconds, task=given.task)  # fmt: skip


if __name__ == "__main__":
    main()
