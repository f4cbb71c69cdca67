"""Looks at a task: python scripts/card.py --task my_task.py --output card.json"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from relay.base.entry import run
from relay.base.errors import UserError
from relay.card.look import Data, Unprepared, look
from relay.card.words import in_words
from relay.task.places import needs_gpu

UNPREPARED, NO_PACKAGE, NO_GPU = 3, 4, 5


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0; 1 with a line on stderr for each mistake; `UNPREPARED` where data are missing; `NO_PACKAGE`
    and `NO_GPU` where the task needs what this Python or this machine lacks.
    """
    options = parser().parse_args(arguments)
    torch.set_num_threads(1)  # on a busy login node threads wait for each other longer than they compute
    try:
        seen = look(*named(options.task), options.options, _data(options))
    except Unprepared as error:
        print(f"error: {error}", file=sys.stderr)
        return UNPREPARED
    except UserError as error:
        lacking = NO_PACKAGE if isinstance(error.__cause__, ImportError) else NO_GPU if needs_gpu(error) else None
        if lacking is None:
            raise
        print(f"error: {error}", file=sys.stderr)
        return lacking
    if options.output is None:
        print(in_words(seen))
    else:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        seen.write(options.output)
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(description=__doc__)
    result.add_argument("--task", required=True, help="the name of a built-in task, or a file of one's own (.py)")
    result.add_argument("--options", type=json.loads, default={}, help="the task's options, as JSON (default: its own)")
    result.add_argument("--output", type=Path, help="the file to write; without it, the card is told in words")
    result.add_argument(
        "--datasets",
        type=Path,
        default=Path("results/datasets"),
        help="the folder of prepared data (default: %(default)s)",
    )
    result.add_argument("--prepare", action="store_true", help="prepare the task's data where they are missing")
    result.add_argument("--root", type=Path, help="a folder with a copy of the data, instead of a download")
    result.add_argument("--mirror", help="an address to download from, instead of the data's own")
    return result


def named(task: str) -> tuple[str, str]:
    """A task's name and its file; '' for a built-in one."""
    return (Path(task).stem.replace("_", "-"), task) if task.endswith(".py") else (task, "")


def _data(options: argparse.Namespace) -> Data:
    return Data(datasets=options.datasets, prepare=options.prepare, root=options.root, mirror=options.mirror)


if __name__ == "__main__":
    run(main)
