"""Runs the benchmarks that this machine can run, one after the other, and writes benchmarks/RESULTS.md.

Each row asks one question, with a target; what is left out is told with its reason. Run it on an idle machine.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "RESULTS.md"
FIRST_LINE = "left out: "  # of what a benchmark prints that cannot run here


@dataclass(frozen=True)
class Row:
    """A question with the command that answers it. `reach` is the target; `most`: the figure has to be at most that."""

    what: str
    against: str
    script: str
    options: Sequence[str] = ()
    reach: float | None = None
    most: bool = False
    shown: Sequence[str] = field(default=())  # further figures of the answer

    def met(self, ratio: float) -> str:
        """Whether the target is reached, in a word."""
        if self.reach is None:
            return "no target"
        return "yes" if (ratio <= self.reach if self.most else ratio >= self.reach) else "no"

    @property
    def target(self) -> str:
        """The target as the table shows it."""
        return "" if self.reach is None else f"{'≤' if self.most else '≥'} {self.reach:g}"


LENET = ("--task", "lenet-cifar10", "--threads", "2", "--steps", "100", "--rounds", "5")
STEP, LAST = ("--against", "step"), ("--channels-last",)
PLAIN = ("--against", "plain", "--threads", "2", "--global-batch-size", "32")
OF_PAGE = ("page_images_per_second", "cpu_images_per_second", "ddp_images_per_second")
ON_GPU = ("page_images_per_second", "page_with_data_workers", "best", "teraflops")
ROWS = (
    Row("LeNet on CIFAR-10, batch 512, CPU: the best setting, images/s", "`cifar10-cpu.py`, whole epoch", "centres",
        reach=3.0, shown=OF_PAGE),
    Row("`ddp` × 2, batch 256 per process, images/s", "`pytorch-ddp-test.py` on gloo", "centres",
        ("--page", "pytorch-ddp-test"), 2.5, shown=OF_PAGE),
    *(Row(f"LeNet's loop, batch {batch}, channels last", "the step alone, on one batch in memory", "loop",
          (*LENET, *STEP, *LAST, "--global-batch-size", str(batch)), 0.95, shown=("other_samples_per_second",))
      for batch in (32, 128, 512, 2048)),
    Row("the same, batch 512, channels last, `dataloader` without workers", "the step alone", "loop",
        (*LENET, *STEP, *LAST, "--global-batch-size", "512", "--loader", "dataloader"), 0.95),
    Row("the loop with records, looks and deadline, batch 64", "a bare loop of ten lines", "loop", LAST, 0.98),
    Row("gpt-tiny, two threads", "a plain loop of torch's own modules, at its best", "loop",
        ("--task", "gpt-tiny", *PLAIN, "--steps", "30", "--rounds", "5"), 0.97, shown=("other", "product")),
    Row("ResNet-18 with GroupNorm on CIFAR-10, two threads", "the same", "loop",
        ("--task", "resnet18-group-cifar10", *PLAIN, *LAST, "--steps", "6", "--rounds", "3"), 0.97,
        shown=("other", "product")),
    *(Row(f"the best memory allocator, or knob of OpenMP: {task}", "none", "knobs",
          ("--task", task, "--global-batch-size", batch, "--steps", count, "--rounds", "2"),
          shown=("best", "knobs", "not_installed"))
      for task, batch, count in (("lenet-cifar10", "512", "100"), ("gpt-tiny", "32", "110"))),
    *(Row(f"from a job's first line to its first step, {name}", "`python -c \"import torch\"`", "hop",
          ("--strategy", strategy, "--processes", str(processes)), 1.5, most=True, shown=("import_torch_seconds",))
      for name, strategy, processes in (("`cpu`", "cpu", 1), ("`ddp` × 2", "ddp", 2))),
    Row("a Slurm job's own Snakemake, each of two, to the first line of the job", "`snakemake --version`", "nested",
        reach=1.5, most=True, shown=("seconds", "version_seconds")),
    Row("a dry run of 1,000 runs, CPU seconds", "bare Snakemake with as many jobs of four rules", "planning",
        ("--rounds", "2"), 1.3, most=True, shown=("growth", "over_described")),
    Row("`make demo` after installation, seconds", "–", "demo", ("--rounds", "2"), 75, most=True,
        shown=("share_of_proofs",)),
    Row("on a GPU: LeNet, batch 512, the best setting, images/s", "`cifar10-gpu.py` without data workers",
        "centres", ("--page", "cifar10-gpu", "--epochs", "20", "--rounds", "1"), 100.0, shown=ON_GPU),
    Row("on a GPU: LeNet's loop, batch 512", "its step captured as a CUDA graph and replayed", "loop",
        ("--device", "cuda", "--task", "lenet-cifar10", "--against", "graph", "--global-batch-size", "512",
         "--steps", "2000"), 0.8, shown=("other_samples_per_second", "product")),
    Row("on a GPU: ResNet-18, batch 256, the best setting, images/s", "the same network in `cifar10-gpu.py`", "centres",
        ("--page", "cifar10-gpu", "--network", "resnet18_cifar10", "--global-batch-size", "256", "--epochs", "3",
         "--rounds", "1"), 3.0, shown=ON_GPU),
)  # fmt: skip


def answer(row: Row, further: Sequence[str] = ()) -> dict[str, Any] | str:
    """What the row's benchmark prints; a text where it cannot run here (`left out: …`), or failed (`failed: …`)."""
    command = [sys.executable, str(HERE / f"{row.script}.py"), *row.options, *further]
    done = subprocess.run(command, check=False, text=True, capture_output=True)
    if done.returncode and (said := [each for each in done.stderr.splitlines() if each.startswith(FIRST_LINE)]):
        return said[0]  # libraries may have warned before
    if done.returncode:  # the other rows are measured all the same
        print(f"{' '.join(command)} failed:\n{done.stderr}", file=sys.stderr, flush=True)
        return f"failed: {(done.stderr.strip().splitlines() or ['without a word'])[-1]}"
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def line(row: Row, measured: dict[str, Any] | str) -> str:
    """The row of the table."""
    if isinstance(measured, str):
        return f"| {row.what} | {row.against} | {row.target} | {measured} | | |"
    low, high = measured["quartiles"]
    spread = f"{low:.3g} – {high:.3g}" if measured["rounds"] > 1 else "one round"
    further = ", ".join(f"{name.replace('_', ' ')} {measured[name]}" for name in row.shown if name in measured)
    ratio = measured["median_ratio"]
    return f"| {row.what} | {row.against} | {row.target} | {ratio:.3g} ({spread}) | {row.met(ratio)} | {further} |"


def head() -> list[str]:
    """The head of the page: when, where and with what."""
    from importlib.metadata import version

    from common import ROOT  # with the package on its path

    from relay.process.system import processor

    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "torchvision", "snakemake"))
    words = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(words, cwd=ROOT, check=False, text=True, capture_output=True)
    return [
        "# Results of the benchmarks",
        "",
        f"Made by `make benchmark` on {time.strftime('%Y-%m-%d')}, at commit {commit.stdout.strip() or 'unknown'}: "
        f"{processor()}, {os.cpu_count()} CPUs; Python {platform.python_version()}, {versions}.",
        "A figure is the median of the rounds, with its quartiles. Ratios are of one run, taken in turns.",
        "",
        "| what | against | target | measured | met | further |",
        "| --- | --- | --- | --- | --- | --- |",
    ]


def main() -> None:
    """Parse the command line, measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="SCRIPT", help="rows of this script alone; may be repeated")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    scripts = {row.script for row in ROWS}
    if unknown := {*(given.only or ())} - scripts:
        parser.error(f"--only: '{unknown.pop()}' is not allowed; allowed: {', '.join(sorted(scripts))}")
    rows = [row for row in ROWS if given.only is None or row.script in given.only]
    lines, failed = head(), False
    for number, row in enumerate(rows, 1):
        print(f"[{number}/{len(rows)}] {row.what}", file=sys.stderr, flush=True)
        measured = answer(row)
        failed |= isinstance(measured, str) and not measured.startswith(FIRST_LINE)
        lines.append(line(row, measured))
        print(lines[-1], flush=True)
        given.output.write_text("\n".join([*lines, ""]), encoding="utf-8")
    sys.exit(failed)


if __name__ == "__main__":
    main()
