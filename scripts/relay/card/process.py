"""A look at a task on a node: `python -m relay.launch.worker card.process WORK --help`."""

from pathlib import Path

from relay.base import options
from relay.card.look import Data, look
from relay.process import machine
from relay.spec.run import TaskLook


def main(arguments: list[str]) -> None:
    """Parse the command line, look, and write the card. Raises UserError for mistakes in the task's file."""
    parser = options.parser(__doc__, "spec", "output", "results", prog="card.process")
    given = parser.parse_args(arguments)

    spec = TaskLook.read(given.spec)
    machine.set_threads(spec.shape.threads, spec.shape.interop_threads)
    root = Path(spec.dataset_root) if spec.dataset_root else None
    # What the login node could not import, it could not let prepare its data either.
    where = Data(datasets=given.results / "datasets", prepare=True, root=root, mirror=spec.dataset_mirror)
    look(spec.task, spec.file, spec.options, where).write(given.output)
