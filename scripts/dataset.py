"""Prepares a task's data: python scripts/dataset.py --spec run.json --output results/datasets/cifar10-1a2b3c4d"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.environments import task_python
from relay.spec.dataset import DatasetSpec
from relay.spec.run import built
from relay.spec.tasks import TaskSpec


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0, or 1 with one line on stderr that says what is wrong."""
    # Terminated, as by a scheduler, it still removes its temporary folder.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stderr)
    options = parser().parse_args(arguments)
    try:
        if options.environment:
            continue_in(task_python.interpreter(*options.environment))
        from relay.task.prepared import prepare_data  # with torch

        task, dataset = asked(options.spec)
        made = prepare_data(task, dataset, options.output, root=options.root, mirror=options.mirror)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing was kept", file=sys.stderr)
        return 130
    size = sum(each.size_bytes for each in made.files.values()) / 1e6
    print(f"{made.name}: {len(made.files)} files, {size:,.1f} MB, in {options.output}")
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(description=__doc__)
    result.add_argument(
        "--spec", type=Path, required=True, help="a JSON file with `task` and `dataset`, such as run.json"
    )
    result.add_argument("--output", type=Path, required=True, help="the folder to make")
    result.add_argument(
        "--environment",
        type=_environment,
        metavar="JSON",
        help="what relay.environments.login_node.asked gave of the stack to run in, and the stack's lock",
    )
    result.add_argument("--root", type=Path, help="a folder with a copy that you have, instead of a download")
    result.add_argument("--mirror", help="an address to download from, instead of the dataset's own")
    return result


def _environment(text: str) -> tuple[dict[str, Any], Path]:
    environment, lock = json.loads(text)
    return environment, Path(lock)


def continue_in(python: str) -> None:
    """Go on in another Python, unless this is the one."""
    if python != sys.executable:
        at = sys.argv.index("--environment")
        os.execv(python, [python, __file__, *sys.argv[1:at], *sys.argv[at + 2 :]])


def asked(file: Path) -> tuple[TaskSpec, DatasetSpec]:
    """The task and the data that a file describes. Raises UserError."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        return built(TaskSpec, values["task"]), built(DatasetSpec, values["dataset"])
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as fault:
        raise UserError(f"{file}: describes no task and its data ({fault})") from None


if __name__ == "__main__":
    sys.exit(main())
