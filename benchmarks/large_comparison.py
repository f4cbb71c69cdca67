"""What the comparison of many runs costs: CPU seconds, memory, and how large its page becomes.

Records are written as the stages before the comparison leave them, with curves and jobs as real runs have them. Then
`relay compare` is run on them: from the records to the tables, the answer, the pictures and the page. `median_ratio` is
its CPU seconds over those of reading the same records as JSON in a bare loop.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import report, spent

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from results_tree import Tree  # noqa: E402

POINTS = 200  # of a curve: as many as a summary keeps
EPOCHS = 20
SHAPES = [("cpu", 1), ("ddp", 2), ("ddp", 4), ("fsdp", 2), ("fsdp", 4), ("zero1", 2)]
READ = """
import json, pathlib, sys
found = [json.loads(path.read_bytes()) for path in pathlib.Path(sys.argv[1]).glob("runs/*/*.json")]
"""


def summary(drawn: random.Random) -> dict[str, Any]:
    """What a summary has beside the figures of every tree: an evaluation for each epoch, curves and jobs."""
    steps = [22 * (1 + epoch) for epoch in range(EPOCHS)]
    learnt = [round(0.97 - 0.8 * math.exp(-epoch / 4) + drawn.gauss(0, 0.01), 4) for epoch in range(EPOCHS)]
    course = [round(drawn.uniform(0.3, 0.9), 4) for _ in range(POINTS)]
    parts = {
        "startup": 2.0,
        "loading": 7.0,
        "steps": 4.3,
        "repeated": 0.0,
        "evaluation": 0.4,
        "saving": 0.6,
        "idle": 0.1,
    }
    return {
        "evaluations": [
            {"step": step, "test_loss": 1 - value, "test_accuracy": value, "test_metrics": {"accuracy": value}}
            for step, value in zip(steps, learnt, strict=True)
        ],
        "losses": {
            "steps": [2 + 2 * point for point in range(POINTS)],
            "values": [2.3 * math.exp(-point / 40) + abs(drawn.gauss(0, 0.05)) for point in range(POINTS)],
        },
        "course": {"seconds": [float(point) for point in range(POINTS)], "cpu_utilisation": course},
        "jobs": [{"attempt": 1, "job": None, "last": steps[-1], "queued": None, "parts": parts}],
        "adopted_from": None,
        "generation": "1",
    }


def spot_checked(identity: str) -> dict[str, Any]:
    """A run's part of the verdict of its setting's spot check."""
    names = ("losses", "update", "buffers", "optimizer", "following losses")
    part = {"figure": 0.0, "limit": 1e-5, "rounding": 0.0, "where": "conv1.weight", "passed": True}
    spots = [
        {"kind": kind, "first": 83, "last": 85, "parts": [{"name": name} | part for name in names]}
        for kind in ("random step", "hop", "end")
    ]
    return {"run": identity, "generation": "1", "status": "passed", "problems": [], "unchecked": [], "spots": spots}


def records(folder: Path, settings: int, repeats: int) -> int:
    """Write the records of a finished comparison, and its plan; the number of its runs."""
    tree, drawn = Tree(folder), random.Random(1)
    for number in range(settings):
        strategy, devices = SHAPES[number % len(SHAPES)]
        batch = 64 * (1 + number // len(SHAPES))
        speeds = [drawn.gauss(20_000 + 37 * batch, 400) * devices**0.8 for _ in range(repeats)]
        changes = {"devices_per_node": devices, "global_batch_size": batch, "epochs": float(EPOCHS)}
        name = f"{strategy}-{number:012x}"
        learnt = [drawn.gauss(0.95, 0.01) for _ in range(repeats)]
        ids = tree.setting(strategy, speeds, name=name, accuracies=learnt, total_steps=22 * EPOCHS, **changes)
        checked = [spot_checked(identity) for identity in ids]
        tree.write(f"equivalence/spot_checks/{name}/verdict.json", {"setting": name, "runs": checked})
        for identity in ids:
            path = tree.root / "runs" / identity / "summary.json"
            tree.write(f"runs/{identity}/summary.json", json.loads(path.read_text()) | summary(drawn))
            for end in (220, 440):
                tree.write(f"logs/segment/{identity}/step-{end}.log", "done")
            tree.write(f"checkpoints/{identity}/chain.json", {"generation": "1", "attempts": []})
    plan = json.loads(tree.write_plan().read_text())
    tree.write("plan.json", plan | {"spot_checks": True})
    return len(plan["runs"])


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5000, help="(default: %(default)s)")
    parser.add_argument("--settings", type=int, default=60, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="(default: %(default)s)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = records(Path(folder), given.settings, given.runs // given.settings)
        results = Path(folder, "results")
        read = [sys.executable, "-c", READ, results]
        relay = [sys.executable, ROOT / "scripts/main.py"]
        compare = [*relay, "compare", "--plan", results / "plan.json", "--results", results]
        rounds = [(*spent(read, results), *spent(compare, results)) for _ in range(given.rounds)]
        pages = {path.name: round(path.stat().st_size / 1e6, 2) for path in results.glob("comparison.*")}
        pictures = sum(path.stat().st_size for path in results.glob("pictures/*.svg"))
    reading, _, seconds, megabytes = map(statistics.median, zip(*rounds, strict=True))
    report(
        "CPU seconds of a comparison, over those of reading its records as JSON",
        [own / bare for bare, _, own, _ in rounds],
        runs=runs,
        settings=given.settings,
        cpu_seconds=round(seconds, 2),
        reading_seconds=round(reading, 2),
        peak_memory_megabytes=round(megabytes),
        page_megabytes=pages["comparison.html"],
        pictures_megabytes=round(pictures / 1e6, 2),
    )


if __name__ == "__main__":
    main()
