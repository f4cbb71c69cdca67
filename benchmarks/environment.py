"""How long a node needs from the wheelhouse to the end of its first `import torch`, beside virtualenv and pip.

Another stack of locks, and another module that its environment can import, may be named.

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


def ours(stack: str, wheels: Path, module: str, disk: Path) -> float:
    """Seconds of the product's way, on an empty disk or on one with the environment."""
    environment = {"mode": "wheels", "stack": stack, "wheelhouse": str(wheels), "python": None, "site_wheels": False}
    began = time.monotonic()
    node.prepare(environment, disk)
    subprocess.run([*node.interpreter(environment, disk), "-c", f"import {module}"], check=True)
    return time.monotonic() - began


def pips(wheels: Path, module: str, disk: Path) -> float:
    """Seconds of the centres' way, on an empty disk."""
    began = time.monotonic()
    subprocess.run([wheelhouse.base_python(), "-m", "venv", str(disk / "env")], check=True)
    python = str(disk / "env/bin/python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    subprocess.run([*pip, "--find-links", str(wheels), "--requirement", str(wheels / REQUIREMENTS)], check=True)
    subprocess.run([python, "-c", f"import {module}"], check=True)
    return time.monotonic() - began


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder with envs/STACK.txt")
    parser.add_argument("--stack", default="torch")
    parser.add_argument("--module", default="torch", help="what is imported")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as named:
        os.chdir(named)  # the wheelhouse's place is below the folder of the call
        ratios, later, seconds = [], [], []
        with redirect_stdout(sys.stderr):  # stdout is for the figures alone
            try:
                wheels = wheelhouse.fetch(wheelhouse.order(given.root, given.stack, "cpu")).resolve()
            except UserError as error:
                sys.exit(f"left out: {error}")
            for number in range(given.rounds):
                disks = [Path(named, f"{name}-{number}") for name in ("ours", "pips")]
                for disk in disks:
                    disk.mkdir(mode=0o700)
                first, kept = (ours(given.stack, wheels, given.module, disks[0]) for _ in range(2))
                theirs = pips(wheels, given.module, disks[1])
                seconds.append(first)
                ratios.append(theirs / first)
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
