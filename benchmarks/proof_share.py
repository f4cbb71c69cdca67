"""What part of a finished comparison's time its proofs took: references, gates and spot checks, of all its jobs.

    python benchmarks/proof_share.py results

Snakemake notes each job's seconds below results/benchmarks. Jobs that other calls left there count too.
"""

import argparse
import csv
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

PROOFS = ("reference", "gate", "spot_check")


def seconds_of(path: Path) -> float:
    """Wall-clock seconds of a job, from the file that Snakemake wrote about it."""
    with path.open(newline="", encoding="utf-8") as stream:
        return sum(float(row["s"]) for row in csv.DictReader(stream, delimiter="\t"))


def share(results: Path) -> dict[str, Any]:
    """Seconds of each rule's jobs, and the share of the proofs. Raises SystemExit where no job was noted."""
    folder = results / "benchmarks"
    seconds: dict[str, dict[str, float]] = defaultdict(dict)
    for path in sorted(folder.rglob("*.tsv")):
        place = path.relative_to(folder).with_suffix("")
        seconds[place.parts[0]]["/".join(place.parts[1:])] = seconds_of(path)
    if not seconds:
        sys.exit(f"error: {folder}: no job is noted here; give the results folder of a finished call")
    by_rule = {rule: sum(jobs.values()) for rule, jobs in seconds.items()}
    proofs, everything = sum(by_rule.get(rule, 0.0) for rule in PROOFS), sum(by_rule.values())
    return {
        "seconds": round(everything, 1),
        "proofs": round(proofs, 1),
        "share": round(proofs / everything, 3) if everything else 0.0,
        "rules": {rule: round(total, 1) for rule, total in by_rule.items()},
        "jobs": {name: round(each, 1) for rule in PROOFS for name, each in seconds.get(rule, {}).items()},
    }


def main() -> None:
    """Parse the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="the results folder of a finished call")
    print(json.dumps(share(parser.parse_args().results), indent=1))


if __name__ == "__main__":
    main()
