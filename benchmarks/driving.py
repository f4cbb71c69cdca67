"""What driving a comparison to its end costs the driver itself: CPU seconds, memory, and how they grow with the runs.

The workflow's own driver drives all runs, each in some segments, on this machine. In a copy of the checkout, programs
that only write what the next job waits for take the place of training, proving and summarising: what is seen is the
driver. `median_ratio` is its CPU seconds for each job with `--growth` times as many runs, over those with `--runs`: up
to 1 is linear. `bare_growth` is the same for a bare Snakemake workflow of four rules, with as many runs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import report, spent
from planning import BARE, Size, config_of

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("Snakefile", "workflow", "scripts", "config", "profiles", "envs")
# In place of each program: what it declares, and nothing else.
INSTANT = """
import json, pathlib, sys, zipfile
def given(name):
    return sys.argv[sys.argv.index(name) + 1]
def write(path, **values):
    pathlib.Path(path).write_text(json.dumps(values))
"""
JOBS = {
    "train": "write(f\"results/runs/{given('--run')}/step-{given('--last')}.json\","
    " run=given('--run'), step=int(given('--last')))",
    "summarise": "write(f\"results/runs/{given('--run')}/summary.json\", run=given('--run'), status='done')",
    "reference": "zipfile.ZipFile(given('--output'), 'w').close()",
    "gate": "write(given('--output'), equivalent=True)",
}
# Snakemake's command line, which tells at its end what its own process has used.
DRIVER = """
import atexit, json, pathlib, resource, sys
from snakemake.cli import main
def tell():
    used = resource.getrusage(resource.RUSAGE_SELF)
    told = {"seconds": used.ru_utime + used.ru_stime, "megabytes": used.ru_maxrss / 1024}
    pathlib.Path("driver.json").write_text(json.dumps(told))
atexit.register(tell)
main(sys.argv[1:])
"""


def checkout(folder: Path) -> Path:
    """A copy of the project whose jobs end at once."""
    folder.mkdir()
    for name in PARTS:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        copy(ROOT / name, folder / name)
    for name, line in JOBS.items():
        (folder / f"scripts/{name}.py").write_text(INSTANT + line + "\n")
    (folder / "driver.py").write_text(DRIVER)
    return folder


def drive(project: Path, folder: Path, snakefile: Path, config: dict[str, Any], target: str) -> dict[str, float]:
    """The driver's CPU seconds and peak memory, and the CPU seconds of all its jobs."""
    folder.mkdir(parents=True)
    (folder / "mine.json").write_text(json.dumps(config))
    command = [sys.executable, project / "driver.py", target, "--snakefile", snakefile]
    command += ["--profile", project / "profiles/local", "--directory", folder, "--configfile", folder / "mine.json"]
    seconds, _ = spent(command, folder)
    found: dict[str, float] = json.loads((folder / "driver.json").read_text())
    ended = len(list(folder.glob("results/benchmarks/**/*.tsv"))) or len(list(folder.glob("results/**/*.json")))
    return found | {"jobs": ended, "seconds_of_jobs": seconds - found["seconds"]}


def of_each_job(few: dict[str, float], many: dict[str, float]) -> float:
    """The driver's CPU seconds for each job where there are many, over those where there are few."""
    return many["seconds"] / many["jobs"] / (few["seconds"] / few["jobs"])


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100, help="(default: %(default)s)")
    parser.add_argument("--segments", type=int, default=4, help="jobs of each run (default: %(default)s)")
    parser.add_argument("--growth", type=int, default=3, help="times as many runs (default: %(default)s)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project = checkout(folder / "project")
        bare = folder / "bare.smk"
        bare.write_text(BARE)
        driven: dict[str, list[dict[str, float]]] = {"ours": [], "bare": []}
        for runs in (given.runs, given.runs * given.growth):
            size = Size(runs, given.segments, most_settings=runs)
            place, of_bare = folder / str(size.runs), {"runs": size.runs, "settings": size.settings}
            ours = drive(project, place / "ours", project / "Snakefile", config_of(size), "first_repeats")
            driven["ours"].append(ours)
            driven["bare"].append(drive(project, place / "bare", bare, of_bare | {"segments": size.segments}, "all"))
    few, many = driven["ours"]
    question = f"a driver's CPU seconds for each job, with {given.growth} times as many runs over those with fewer"
    told = [{name: round(value, 2) for name, value in found.items()} for found in (few, many)]
    growths = {name: of_each_job(*both) for name, both in driven.items()}
    report(question, [growths["ours"]], bare_growth=round(growths["bare"], 4), runs=given.runs, segments=given.segments,
           driver=told[0], driver_when_larger=told[1])  # fmt: skip


if __name__ == "__main__":
    main()
