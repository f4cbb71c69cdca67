"""How many seconds the demo takes from nothing to its report, when all is installed, and what part its proofs take."""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import ROOT, called, report
from proof_share import share


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=ROOT / "config/demo.yaml")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    command += ["--profile", str(ROOT / "profiles/local"), "--configfile", str(given.config.resolve())]
    seconds, shares = [], []
    measured: dict[str, Any] = {}
    for _ in range(given.rounds):
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            called("the demo", [*command, "--directory", folder])
            seconds.append(time.monotonic() - began)
            measured = share(Path(folder) / "results")
        shares.append(measured["share"])
    report(
        "seconds of the demo",
        seconds,
        share_of_proofs=sorted(shares)[len(shares) // 2],
        seconds_by_rule=measured["rules"],
    )


if __name__ == "__main__":
    main()
