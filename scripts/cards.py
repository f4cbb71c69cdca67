"""Makes the cards of the built-in tasks anew: python scripts/cards.py [TASK …] [--root FOLDER]"""

from __future__ import annotations

import argparse
from pathlib import Path

from relay.base.entry import run
from relay.card.look import Data, look
from relay.spec.tasks import BUILT_IN, built_in


def main() -> int:
    """Look at each task, with its data prepared, and write what was seen beside the tasks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", help="the names of built-in tasks (default: all)")
    parser.add_argument("--root", type=Path, help="a folder with copies of public data, instead of downloads")
    options = parser.parse_args()
    where = Data(datasets=Path("results/datasets"), prepare=True, root=options.root)
    for name in options.tasks or built_in():
        file = BUILT_IN / "cards" / f"{name}.json"
        file.parent.mkdir(exist_ok=True)
        look(name, "", {}, where).write(file)
        print(file)
    return 0


if __name__ == "__main__":
    run(main)
