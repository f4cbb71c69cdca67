"""How long a node needs from the wheelhouse to the end of its first `import torch`, beside virtualenv and pip.

Centres' pages make the environment of a job with `virtualenv` and `pip install --no-index`; Python's own `venv` stands
for the former. Both install the same wheels, which are fetched first and not timed. `where_kept` is the ratio of a
later job on the node, whose disk has kept the environment.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

from common import ROOT, report

from relay.base.errors import UserError
from relay.environments import node, wheelhouse
from relay.environments.wheelhouse import REQUIREMENTS

IMPORT = ("-c", "import torch")


def ours(wheels: Path, disk: Path) -> float:
    """Seconds of the product's way, on an empty disk or on one with the environment."""
    environment = {"mode": "wheels", "stack": "torch", "wheelhouse": str(wheels), "python": None, "site_wheels": False}
    began = time.monotonic()
    node.prepare(environment, disk)
    subprocess.run([*node.interpreter(environment, disk), *IMPORT], check=True)
    return time.monotonic() - began


def pips(wheels: Path, disk: Path) -> float:
    """Seconds of the centres' way, on an empty disk."""
    began = time.monotonic()
    subprocess.run([wheelhouse.base_python(), "-m", "venv", str(disk / "env")], check=True)
    python = str(disk / "env/bin/python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    subprocess.run([*pip, "--find-links", str(wheels), "--requirement", str(wheels / REQUIREMENTS)], check=True)
    subprocess.run([python, *IMPORT], check=True)
    return time.monotonic() - began


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as named:
        os.chdir(named)  # the wheelhouse's place is below the folder of the call
        ratios, later, seconds = [], [], []
        with redirect_stdout(sys.stderr):  # stdout is for the figures alone
            try:
                wheels = wheelhouse.fetch(wheelhouse.order(ROOT, "torch", "cpu")).resolve()
            except UserError as error:
                sys.exit(f"left out: {error}")
            for number in range(given.rounds):
                disks = [Path(named, f"{name}-{number}") for name in ("ours", "pips")]
                for disk in disks:
                    disk.mkdir(mode=0o700)
                seconds.append(ours(wheels, disks[0]))
                kept, theirs = ours(wheels, disks[0]), pips(wheels, disks[1])
                ratios.append(theirs / seconds[-1])
                later.append(theirs / kept)
                for disk in disks:
                    shutil.rmtree(disk)
        os.chdir(ROOT)
    question = "seconds of virtualenv, pip and import torch over those of the wheelhouse and import torch"
    report(
        question, ratios, seconds=round(statistics.median(seconds), 1), where_kept=round(statistics.median(later), 1)
    )


if __name__ == "__main__":
    main()
