"""What a dry run of a large comparison costs beside a bare Snakemake workflow with as many jobs, in CPU seconds.

Each call builds the graph of all jobs and runs none of them. The bare workflow has four rules (a run's start, its
segments, its summary, a check of its setting), with inputs, outputs and commands alone. `median_ratio` is this
workflow's CPU seconds over the bare one's. `over_described` is the same over four rules that also have a log, a message
and a benchmark, as this workflow's have: Snakemake reads and formats these for each job. `growth` is what a run costs
where there are `--growth` times as many, over what it costs here: 1 is linear.
"""

import argparse
import json
import re
import resource
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from common import ROOT, called, report

SETTINGS = 50  # at most: all further runs are repeats
BARE = """
RUNS, SETTINGS, SEGMENTS = config["runs"], config["settings"], config["segments"]
rule all:
    input:
        expand("results/runs/{run}/summary.json", run=range(RUNS)),
        expand("results/checks/{setting}.json", setting=range(SETTINGS)),
rule start:
    output: "results/runs/{run}/chain.json"
    shell: "touch {output}"
def before(wildcards):
    end = int(wildcards.end)
    return f"results/runs/{wildcards.run}/" + (f"step-{end - 1}.json" if end > 1 else "chain.json")
rule segment:
    input: before
    output: "results/runs/{run}/step-{end}.json"
    shell: "touch {output}"
rule summary:
    input: f"results/runs/{{run}}/step-{SEGMENTS}.json"
    output: "results/runs/{run}/summary.json"
    shell: "touch {output}"
rule check:
    input:
        lambda wildcards: [f"results/runs/{run}/summary.json" for run in range(int(wildcards.setting), RUNS, SETTINGS)]
    output: "results/checks/{setting}.json"
    shell: "touch {output}"
"""


class Size(NamedTuple):
    """How large a comparison is. Its runs are settings × repeats, so that there may be a few less than asked for."""

    requested_runs: int
    segments: int
    most_settings: int = SETTINGS

    @property
    def settings(self) -> int:
        """The number of its settings."""
        return min(self.most_settings, self.requested_runs)

    @property
    def repeats(self) -> int:
        """The repeats of each setting."""
        return self.requested_runs // self.settings

    @property
    def runs(self) -> int:
        """The runs of all settings."""
        return self.settings * self.repeats


def config_of(size: Size) -> dict[str, object]:
    """The comparison: one strategy on the digits, with as many batch sizes as there are settings."""
    return {
        "task": "lenet-digits",
        "device": "cpu",
        "repeats": size.repeats,
        "epochs": size.segments,
        "segment": {"epochs": 1},
        "most_jobs": size.runs * size.segments,
        "comparisons": [{"strategy": "cpu", "global_batch_size": [32 + n for n in range(size.settings)]}],
    }


def described(snakefile: str) -> str:
    """The same rules with a log, a benchmark, a message, and a resource that is a function."""
    resources = "    resources: attempt=lambda wildcards, attempt: attempt"
    more = r'    log: "results/logs/\1.log"\n    benchmark: "results/benchmarks/\1.tsv"\n    message: "Making {output}"'
    return re.sub(r'    output: "results/(.+)\.json"', rf"\g<0>\n{more}\n{resources}", snakefile)


def dry_run(folder: Path, snakefile: Path, profile: str, config: dict[str, Any]) -> tuple[float, int]:
    """The CPU seconds of a dry run, and the number of jobs that it tells."""
    folder.mkdir(exist_ok=True)
    (folder / "benchmark.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(snakefile)]
    command += ["--profile", f"{ROOT}/profiles/{profile}", "--directory", str(folder)]
    command += ["--configfile", str(folder / "benchmark.json"), "--dry-run", "--quiet", "rules", "host"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    variables = {"PYTHONPATH": str(ROOT / "scripts"), "SNAKEMAKE_PROFILE": ""}
    printed = called("the dry run", command, variables, folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, int(re.findall(r"(?m)^total\s+(\d+)$", printed)[-1])


def measure(folder: Path, size: Size, profile: str) -> dict[str, float]:
    """CPU seconds and jobs of this workflow, of the bare one, and of that with described rules."""
    as_large = {"runs": size.runs, "settings": size.settings, "segments": size.segments}
    seconds, jobs = dry_run(folder / "ours", ROOT / "Snakefile", profile, config_of(size))
    figures = {"jobs": float(jobs), "seconds": seconds}
    for name, text in (("bare", BARE), ("described", described(BARE))):
        snakefile = folder / f"{name}.smk"
        snakefile.write_text(text)
        figures[f"{name}_seconds"], figures["bare_jobs"] = dry_run(folder / name, snakefile, profile, as_large)
    return figures


def ratio(figures: dict[str, float], to: str = "bare") -> float:
    """This workflow's CPU seconds over another one's."""
    return figures["seconds"] / figures[f"{to}_seconds"]


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="(default: %(default)s)")
    parser.add_argument("--segments", type=int, default=1, help="jobs of each run (default: %(default)s)")
    parser.add_argument("--profile", default="local", help="of profiles/ (default: %(default)s)")
    parser.add_argument("--growth", type=int, default=5, help="times as many runs; 1: not measured (default: 5)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    given = parser.parse_args()
    size = Size(given.runs, given.segments)
    with tempfile.TemporaryDirectory() as folder:
        rounds = [measure(Path(folder), size, given.profile) for _ in range(given.rounds)]
        figures: dict[str, Any] = {name: round(statistics.median(f[name] for f in rounds), 2) for name in rounds[0]}
        figures["over_described"] = round(statistics.median(ratio(each, "described") for each in rounds), 4)
        if given.growth > 1:
            more = Size(size.runs * given.growth, given.segments)
            larger = measure(Path(folder), more, given.profile)
            figures["growth"] = round(larger["seconds"] / figures["seconds"] / given.growth, 4)
            figures["bare_growth"] = round(larger["bare_seconds"] / figures["bare_seconds"] / given.growth, 4)
            ratios = {"ratio": ratio(larger), "over_described": ratio(larger, "described")}
            figures["larger"] = {
                name: round(value, 2) for name, value in (larger | ratios | {"runs": more.runs}).items()
            }
    question = "CPU seconds of a dry run, over those of a bare workflow with as many jobs"
    report(question, [ratio(each) for each in rounds], profile=given.profile, runs=size.runs, **figures)


if __name__ == "__main__":
    main()
