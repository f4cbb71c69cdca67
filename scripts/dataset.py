"""Prepares one dataset: python scripts/dataset.py --name cifar10 --output results/datasets/cifar10"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from pathlib import Path

from relay.base.errors import UserError
from relay.datasets import catalogue, request
from relay.datasets.prepare import prepare
from relay.spec.dataset import DatasetSpec


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0, or 1 with one line on stderr that says what is wrong."""
    # Terminated, as by a scheduler, it still removes its temporary folder.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stderr)
    options = parser().parse_args(arguments)
    try:
        made = prepare(asked(options), options.output, root=options.root, mirror=options.mirror)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing was kept", file=sys.stderr)
        return 130
    counts = f"{made.train_count:,} training and {made.test_count:,} test samples"
    print(f"{made.name}: {counts} in {options.output} (source: {made.source})")
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(description=__doc__)
    which = result.add_mutually_exclusive_group(required=True)
    which.add_argument("--spec", type=Path, help="a JSON file with name, version, kind, shape, classes and counts")
    which.add_argument("--name", help="a dataset of the catalogue")
    result.add_argument(
        "--shape", type=whole_numbers, help="of one sample, such as 3,32,32 for synthetic, 10 for random-…"
    )
    result.add_argument("--train-count", type=int)
    result.add_argument("--test-count", type=int)
    result.add_argument("--classes", type=int)
    result.add_argument("--output", type=Path, required=True, help="the folder to make")
    result.add_argument("--root", type=Path, help="a folder with a copy in torchvision's layout, instead of a download")
    result.add_argument("--mirror", help="an address to download from, instead of the dataset's own")
    return result


def whole_numbers(text: str) -> tuple[int, ...]:
    """'3,32,32' → (3, 32, 32)."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' must be whole numbers, as 3,32,32") from error


def asked(options: argparse.Namespace) -> DatasetSpec:
    """The dataset that the command line describes. Raises UserError."""
    keys = ("shape", "train_count", "test_count", "classes")
    changes = {key: getattr(options, key) for key in keys if getattr(options, key) is not None}
    if options.spec is not None:
        if changes:
            raise UserError(f"{next(iter(changes))}: cannot be given beside --spec, which says it already")
        return request.from_file(options.spec)
    fixed = catalogue.dataset(options.name)
    if changes and catalogue.entry(options.name).family is None:
        key, value = next(iter(changes.items()))
        raise UserError(f"{key}: {value} cannot be chosen for '{options.name}', where it is {getattr(fixed, key)}")
    return catalogue.dataset(options.name, **changes)


if __name__ == "__main__":
    sys.exit(main())
