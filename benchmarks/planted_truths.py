"""What the answer says of comparisons whose truth is known: how often it is certain, and how often wrongly.

Printed is, for each truth, the part of the draws of each certainty and recommendation, the part that was certain and
wrong with its 95 % interval, and the answer to the first draw.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "support")]

from planted_truths import TRUTHS, changed, found  # noqa: E402


def main() -> int:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=500, help="of each truth (default: %(default)s)")
    parser.add_argument("--truth", default="", help="only those with this in their name")
    given = parser.parse_args()
    chosen = [truth for truth in TRUTHS if given.truth in truth.name]
    shares: dict[str, Any] = {truth.name: asdict(found(truth, given.draws)) for truth in chosen}
    for spread, days in ((0.02, 1), (0.05, 1), (0.05, 3)) if not given.truth else ():
        said = changed(spread, given.draws, days=days)
        name = f"compare_results, nothing changed but the day ({100 * spread:g} %, {days} a side)"
        shares[name] = {change: count / given.draws for change, count in said.items()}
    print(json.dumps({"draws": given.draws, "truths": shares}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
