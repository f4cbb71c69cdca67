"""One setting of the product beside another, each trained as a job, in turns: the speed of `--ours` over `--theirs`.

Each is a part of a config, in JSON, that joins `--config`; one strategy and one repeat. `--steps` is their length.

    python benchmarks/settings.py --ours '{"checkpoint_minutes": 0.1}' --theirs '{"checkpoint_minutes": 1000}'
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import torch
from common import DATA, report, short_run, trained

from relay.spec.run import changed

WARM = 20  # steps, in which memory is asked for and networks are compiled


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = {"task": "lenet-synthetic", "comparisons": [{"strategy": "cpu"}]}
    parser.add_argument("--config", type=json.loads, default=usual, help="of both (default: `cpu` on synthetic images)")
    parser.add_argument("--ours", type=json.loads, required=True)
    parser.add_argument("--theirs", type=json.loads, required=True)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder with archives of public data")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    if given.config.get("device") == "cuda" and not torch.cuda.is_available():
        parser.exit(1, "left out: torch sees no GPU here\n")
    with tempfile.TemporaryDirectory() as named:
        runs = {}
        for name in ("ours", "theirs"):
            config = given.config | getattr(given, name)
            run = short_run(config, given.steps, Path(named) / name, given.data)
            runs[name] = changed(run, observed_steps=0)
        ratios, speeds = [], []
        for _ in range(given.rounds):
            ours, theirs = (trained(run, Path(named) / name, after=WARM) for name, run in runs.items())
            speeds.append(theirs)
            ratios.append(ours / theirs)
    report("speed of one setting over that of another", ratios, samples_per_second=round(statistics.median(speeds)),
           ours=given.ours, theirs=given.theirs)  # fmt: skip


if __name__ == "__main__":
    main()
