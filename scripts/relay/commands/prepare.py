"""What the login node prepares for jobs."""

import json
import logging
import os
import signal
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from relay.base import ending
from relay.base.entry import MAIN, ROOT
from relay.base.errors import UserError
from relay.base.files import write_json
from relay.base.typed import built
from relay.environments import login_node, task_python
from relay.spec.labels import counted
from relay.spec.tasks import DatasetSpec, TaskSpec


def dataset(parser: ArgumentParser, words: list[str]) -> int:
    """Exit status 0, or 1 with one line on stderr that says what is wrong."""
    # Terminated, as by a scheduler, it still removes its temporary folder.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stderr)
    of = "a JSON file with `task` and `dataset`, such as run.json"
    parser.add_argument("--spec", type=Path, required=True, help=of)
    parser.add_argument("--output", type=Path, required=True, help="the folder to make")
    stack = "what relay.environments.login_node.environment_of gave of the stack to run in, and the stack's lock"
    parser.add_argument("--environment", type=json.loads, metavar="JSON", help=stack)
    parser.add_argument("--root", type=Path, help="a folder with a copy that you have, instead of a download")
    parser.add_argument("--mirror", help="an address to download from, instead of the dataset's own")
    given = parser.parse_args(words)
    try:
        if given.environment:
            environment, lock = given.environment
            continue_in(task_python.interpreter(environment, Path(lock)), words)
        from relay.task.prepared import prepare_data  # with torch

        task, data = task_and_dataset(given.spec)
        manifest = prepare_data(task, data, given.output, root=given.root, mirror=given.mirror)
    except KeyboardInterrupt:
        print("interrupted; nothing was kept", file=sys.stderr)
        return 130
    size = sum((given.output / name).stat().st_size for name in manifest.files) / 1e6
    print(f"{manifest.name}: {counted(len(manifest.files), 'file')}, {size:,.1f} MB, in {given.output}")
    return 0


def continue_in(python: str, words: list[str]) -> None:
    """Go on in another Python, unless this is the one."""
    if python != sys.executable:
        at = words.index("--environment")
        os.execv(python, [python, str(ROOT / MAIN), "dataset", *words[:at], *words[at + 2 :]])


def task_and_dataset(file: Path) -> tuple[TaskSpec, DatasetSpec]:
    """The task and the data that a file describes. Raises UserError."""
    try:
        values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return built(TaskSpec, values["task"]), built(DatasetSpec, values["dataset"])
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as fault:
        raise UserError(f"{file}: describes no task and its data ({fault})") from None


def environment(parser: ArgumentParser, words: list[str]) -> int:
    """Prepare the environment, and write its record last."""
    parser.add_argument("--lock", type=Path, required=True, help="the stack's lock, envs/STACK.txt")
    parser.add_argument("--output", type=Path, required=True, help="where the record goes (.json)")
    own = "what relay.environments.login_node.environment_of gave (the driver's own environment)"
    parser.add_argument("--asked", type=json.loads, metavar="JSON", help=own)
    given = parser.parse_args(words)
    # As an exception, so that compilers are ended and half-made folders are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ending.INTERRUPTED))
    stack = given.asked or login_node.environment_of(None, given.lock.stem, given.lock.resolve().parent.parent)
    write_json(given.output, login_node.prepare(stack, given.lock))
    return 0
