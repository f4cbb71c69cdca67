"""How ways of feeding data compare, without a model: images per second of the one over those of the other.

--against dataloader     `resident` over `dataloader`, on synthetic images
--against torchvision    `dataloader` over torch's DataLoader and torchvision's CIFAR10, with the same transforms and
                         the same samples in the same order
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from common import DATA, report, run_of, unpacked

from relay.process import machine
from relay.spec.run import Run
from relay.task.bound import BoundTask
from relay.task.data import feeder
from relay.task.split import Split, chosen

TASKS = {"dataloader": "lenet-synthetic", "torchvision": "lenet-cifar10"}


def lists(run: Run) -> list[Any]:
    """The samples of each step."""
    count, batch = run.dataset.train_count, run.batch.global_batch_size
    return [chosen(count, batch, run.seed, step) for step in range(run.length.total_steps)]


def ours(kind: str, run: Run, split: Split, workers: int) -> Iterable[Any]:
    """The product's batches."""
    return feeder(kind, split, torch.device("cpu"), workers).batches(iter(lists(run)))


def torchs(run: Run, split: Split, workers: int, root: Path) -> Iterable[Any]:
    """The same batches, as torchvision's examples make them."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts/relay/script/beside"))
    import sitecustomize  # noqa: F401  # torchvision beside a torch of another index
    from torchvision import transforms
    from torchvision.datasets import CIFAR10

    known = (split.task.mean.flatten().tolist(), split.task.std.flatten().tolist())  # type: ignore[attr-defined]
    change = transforms.Compose([transforms.ToTensor(), transforms.Normalize(*known)])
    dataset = CIFAR10(str(root), train=True, download=False, transform=change)
    sampler: Any = [which.positions.tolist() for which in lists(run)]
    return torch.utils.data.DataLoader(dataset, batch_sampler=sampler, num_workers=workers)


def seconds(batches: Iterable[Any]) -> float:
    """Seconds until the last batch is there."""
    started = time.perf_counter()
    for _ in batches:
        pass
    return time.perf_counter() - started


def check_same(one: Any, other: Any) -> None:
    """Exit where two first batches have other labels, or images that differ by more than rounding."""
    (images, labels), (images_too, labels_too) = one, other
    if not torch.equal(labels, labels_too) or not torch.allclose(images, images_too, atol=1e-4):
        sys.exit("the two ways read other samples")


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", choices=[*TASKS], default="dataloader")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder with archives of public data")
    parser.add_argument("--steps", type=int, default=97)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--global-batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    given = parser.parse_args()
    machine.set_threads(1, 1)
    with tempfile.TemporaryDirectory() as named:
        folder, root = Path(named), None
        if given.against == "torchvision":
            root = unpacked("cifar-10-batches-py.tar.xz", folder / "archive", given.data)
        run = run_of(TASKS[given.against], folder / "dataset", given.steps, given.global_batch_size, root=root)
        split = BoundTask.of(run, folder / "dataset").split("train")

        def other() -> Iterable[Any]:
            if root is not None:
                return torchs(run, split, given.workers, root)
            return ours("dataloader", run, split, given.workers)

        def quicker() -> Iterable[Any]:
            return ours("dataloader" if root else "resident", run, split, given.workers if root else 0)

        check_same(next(iter(quicker())), next(iter(other())))
        slow, ratios = [], []
        for _ in range(given.rounds):
            slow.append(seconds(other()))
            ratios.append(slow[-1] / seconds(quicker()))
    speed = given.steps * given.global_batch_size / statistics.median(slow)
    name = "dataloader" if root else "resident"
    report(f"{name} over {given.against}, images/s", ratios, other_images_per_second=round(speed),
           global_batch_size=run.batch.global_batch_size, workers=given.workers)  # fmt: skip


if __name__ == "__main__":
    main()
