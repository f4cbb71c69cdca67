"""What a step's time goes to with channels last, the product's default (after), and without (before).

For `cpu` on two CPUs, and for `ddp` on two processes, in one run of each in turns. The parts are those of the report:
microseconds for each sample of a rank.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from common import DATA, report, short_run, trained, written

from relay.run_folder.places import Places
from relay.run_folder.step_split import PARTS, StepSplit
from relay.spec.run import Run, changed

BEFORE = {"channels_last": False}
SHAPES = {"cpu": {"cpus_per_task": 2}, "ddp": {"devices_per_node": 2}}


def observed(run: Run, results: Path) -> dict[str, float]:
    """Microseconds of each part of a step, for each sample of a rank. Raises SystemExit where none were observed."""
    trained(run, results)
    split = StepSplit.read(Places(results, run.id).work)
    if split is None:
        raise SystemExit(f"left out: the steps of {run.id} could not be observed here")
    samples = run.batch.global_batch_size / run.shape.world_size
    return {part: share * split.seconds * 1e6 / samples for part, share in split.fractions().items()}


def middle(rounds: list[Mapping[str, float]]) -> dict[str, float]:
    """The median of each part."""
    return {part: round(median(each[part] for each in rounds), 2) for part in PARTS}


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="lenet-cifar10")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder with archives of public data")
    parser.add_argument("--global-batch-size", type=int, default=512)
    parser.add_argument("--strategies", nargs="+", choices=SHAPES, default=[*SHAPES])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as named:
        results = Path(named)
        figures, ratios = {}, []
        for name in given.strategies:
            comparison = {"strategy": name, "global_batch_size": given.global_batch_size, **SHAPES[name]}
            config = {"task": given.task, "comparisons": [comparison]}
            run = short_run(config, given.steps, results, given.data)
            kinds = {
                "before": written(changed(run, id=f"{name}-before", **BEFORE), results),
                "after": written(changed(run, id=f"{name}-after"), results),
            }
            rounds = [{kind: observed(each, results) for kind, each in kinds.items()} for _ in range(given.rounds)]
            figures[name] = {kind: middle([each[kind] for each in rounds]) for kind in kinds}
            if name == given.strategies[0]:
                ratios = [sum(each["before"].values()) / sum(each["after"].values()) for each in rounds]
    question = f"seconds of a step of `{given.strategies[0]}` before, over after"
    report(question, ratios, microseconds_of_a_sample=figures, task=given.task)


if __name__ == "__main__":
    main()
