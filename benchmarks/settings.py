"""One setting of the product beside another, each trained as a job, in turns: the speed of `--ours` over `--theirs`.

Each is a part of a config, in JSON, that joins `--config`; one strategy and one repeat. `--steps` is their length. For
`mps`, `with_mps` tells whether the daemon was there: without it, the replicas take turns.

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

from relay.run_folder.places import Places
from relay.spec.run import Run, changed

WARM = 20  # steps, in which memory is asked for and networks are compiled


def with_mps(run: Run, results: Path) -> bool:
    """Whether the run's processes were clients of NVIDIA's MPS daemon, as their records tell."""
    records = next(Places(results, run.id).work.glob("records/*.jsonl"))
    facts = json.loads(records.read_text().splitlines()[0])["ranks"][0]
    return "CUDA_MPS_PIPE_DIRECTORY" in facts["environment"]


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
            found = {name: trained(run, Path(named) / name, after=WARM) for name, run in runs.items()}
            speeds.append(found["theirs"])
            ratios.append(found["ours"] / found["theirs"])
        ours = runs["ours"]
        further = {"with_mps": with_mps(ours, Path(named) / "ours")} if ours.strategy.name == "mps" else {}
    report("speed of one setting over that of another", ratios, samples_per_second=round(statistics.median(speeds)),
           ours=given.ours, theirs=given.theirs, **further)  # fmt: skip


if __name__ == "__main__":
    main()
