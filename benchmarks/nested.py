"""What a Slurm job's own Snakemake costs before the job's command begins, beside `snakemake --version`.

A job of Slurm starts Snakemake twice, one after the other: the plugin's command, and in it the one that runs the rule.
Each reads the workflow and builds the graph of that one job. Here one of them is timed, without Slurm: from its start
to the first line of the rule's command, for a training that is finished, so that only its state is made again.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from common import ROOT, called, report

CONFIG = {"task": "lenet-digits", "device": "cpu", "repeats": 1, "epochs": 1, "comparisons": [{"strategy": "cpu"}]}
CONFIG["gate"] = {"steps": 20}  # what the gate says is not measured
STARTS = 2  # of Snakemake in a Slurm job
# As the plugin's executors put it together (snakemake-interface-executor-plugins, `format_job_exec`).
NESTED = "--force --force-use-threads --target-files-omit-workdir-adjustment --max-inventory-time 0 --nocolor "
NESTED += "--no-hooks --nolock --ignore-incomplete --attempt 1 --retries 0 --scheduler greedy --cores all "
NESTED += "--mode remote --executor local --allowed-rules segment"
# Python runs this file at the start of each process that finds it.
MARK = """
import os, sys, time
if "train" in sys.orig_argv and any(word.endswith("scripts/main.py") for word in sys.orig_argv):
    with open(os.environ["FIRST_LINE"], "a") as stream:
        stream.write(f"{time.time()}\\n")
"""


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as named:
        folder = Path(named)
        (folder / "tiny.json").write_text(json.dumps(CONFIG))
        (folder / "site").mkdir()
        (folder / "site/sitecustomize.py").write_text(MARK)
        snakemake = [sys.executable, "-m", "snakemake", "--snakefile", f"{ROOT}/Snakefile", "--configfile", "tiny.json"]
        own = {"SNAKEMAKE_PROFILE": ""}
        called("the comparison", [*snakemake, "--profile", f"{ROOT}/profiles/local", "cpu"], own, folder)
        (state,) = folder.glob("results/runs/*/step-*.json")
        run, end = state.parent.name, state.stem.removeprefix("step-")
        nested = [*snakemake, "--target-jobs", f"segment:run={run},end={end}", *NESTED.split()]
        ratios, alone, seconds = [], [], []
        for number in range(given.rounds):
            began = time.time()
            called("snakemake --version", [sys.executable, "-m", "snakemake", "--version"], own, folder)
            alone.append(time.time() - began)
            mark = folder / f"mark-{number}"
            began = time.time()
            marked = {"PYTHONPATH": str(folder / "site"), "FIRST_LINE": str(mark)}
            called("the job's own Snakemake", nested, own | marked, folder)
            seconds.append(float(mark.read_text().split()[0]) - began)
            ratios.append(seconds[-1] / alone[-1])
    report("a job's own Snakemake, to the first line of its command, over `snakemake --version`", ratios,
           seconds=round(statistics.median(seconds), 2), version_seconds=round(statistics.median(alone), 2),
           starts_in_a_slurm_job=STARTS)  # fmt: skip


if __name__ == "__main__":
    main()
