"""Looks at tasks."""

import json
import sys
from argparse import ArgumentParser
from pathlib import Path

from relay.base.errors import UserError
from relay.spec.tasks import BUILT_IN, NO_GPU, NO_PACKAGE, UNPREPARED, WITHOUT_GPU, built_in

DATASETS = Path("results/datasets")


def card(parser: ArgumentParser, words: list[str]) -> int:
    """Exit status 0; 1 with a line on stderr for each mistake; `UNPREPARED` where data are missing; `NO_PACKAGE`
    and `NO_GPU` where the task needs what this Python or this machine lacks.
    """
    parser.add_argument("--task", required=True, help="the name of a built-in task, or a file of one's own (.py)")
    parser.add_argument("--options", type=json.loads, default={}, help="the task's options, as JSON (default: its own)")
    parser.add_argument("--output", type=Path, help="the file to write; without it, the card is told in words")
    where = "the folder of prepared data (default: %(default)s)"
    parser.add_argument("--datasets", type=Path, default=DATASETS, help=where)
    parser.add_argument("--prepare", action="store_true", help="prepare the task's data where they are missing")
    parser.add_argument("--root", type=Path, help="a folder with a copy of the data, instead of a download")
    parser.add_argument("--mirror", help="an address to download from, instead of the data's own")
    given = parser.parse_args(words)
    import torch

    from relay.card.look import Data, Unprepared, look
    from relay.task.places import needs_gpu

    torch.set_num_threads(1)  # on a busy login node threads wait for each other longer than they compute
    data = Data(datasets=given.datasets, prepare=given.prepare, root=given.root, mirror=given.mirror)
    try:
        seen = look(*named(given.task), given.options, data)
    except Unprepared as error:
        print(f"error: {error}", file=sys.stderr)
        return UNPREPARED
    except UserError as error:
        lacking = NO_PACKAGE if isinstance(error.__cause__, ImportError) else NO_GPU if needs_gpu(error) else None
        if lacking is None:
            raise
        remedy = WITHOUT_GPU if lacking == NO_GPU and given.output is None else ""  # a plan may let a job look
        print(f"error: {error}{remedy}", file=sys.stderr)
        return lacking
    if given.output is None:
        from relay.card.words import in_words

        print(in_words(seen))
    else:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        seen.write(given.output)
    return 0


def named(task: str) -> tuple[str, str]:
    """A task's name and its file; '' for a built-in one."""
    return (Path(task).stem.replace("_", "-"), task) if task.endswith(".py") else (task, "")


def cards(parser: ArgumentParser, words: list[str]) -> int:
    """Look at each task, with its data prepared, and write what was seen beside the tasks."""
    parser.add_argument("tasks", nargs="*", help="the names of built-in tasks (default: all)")
    parser.add_argument("--root", type=Path, help="a folder with copies of public data, instead of downloads")
    given = parser.parse_args(words)
    from relay.card.look import Data, look

    where = Data(datasets=DATASETS, prepare=True, root=given.root)
    for name in given.tasks or built_in():
        file = BUILT_IN / "cards" / f"{name}.json"
        file.parent.mkdir(exist_ok=True)
        look(name, "", {}, where).write(file)
        print(file)
    return 0
