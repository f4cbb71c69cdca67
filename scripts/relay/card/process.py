"""A look at a task on a node: `python -m relay.launch.worker card.process WORK --help`."""

from __future__ import annotations

from pathlib import Path

from relay.base import options
from relay.card.look import Data, look
from relay.process import machine
from relay.spec.run import TaskLook


def main(arguments: list[str]) -> None:
    """Parse the command line, look, and write the card. Raises UserError for mistakes in the task's file."""
    parser = options.parser(__doc__, "spec", "output", "results", prog="card.process")
    given = parser.parse_args(arguments)

    asked = TaskLook.read(given.spec)
    machine.set_threads(asked.shape.threads, asked.shape.interop_threads)
    root = Path(asked.dataset_root) if asked.dataset_root else None
    # What the login node could not import, it could not let prepare its data either.
    where = Data(datasets=given.results / "datasets", prepare=True, root=root, mirror=asked.dataset_mirror)
    look(asked.task, asked.file, asked.options, where).write(given.output)
