"""What the comparison's statistics promise, by simulation: coverage of intervals, wrong calls, advised repeats.

Speeds of two settings are drawn with a known ratio and with noise of five kinds. Printed is, for each kind and number
of repeats, the part of 95 % intervals that cover the true ratio, and how often each standing is given.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "support")]

from simulated_speeds import NOISES, advised, called, covered  # noqa: E402

REPEATS = (2, 3, 5, 10)


def main() -> int:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=20_000, help="for each figure (default: %(default)s)")
    draws = parser.parse_args().draws
    figures: dict[str, Any] = {"draws": draws}
    for noise in NOISES:
        for repeats in REPEATS:
            figures[f"{noise}, {repeats} repeats"] = {
                "covered": covered(noise, repeats, draws=draws),
                "ties": called(noise, repeats, true_ratio=1.0, draws=draws),
                "10 % slower": called(noise, repeats, true_ratio=0.9, draws=draws),
            }
    for ratio in (0.9, 0.95, 1.0):
        count = advised("normal", ratio, 0.02)
        standings = called("normal", count, true_ratio=ratio, draws=draws, spread=0.02)
        figures[f"advised for a ratio of {ratio}"] = {"repeats": count, **standings}
    print(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
