"""The job that looks at a task, where the login node lacks what the task needs."""

from pathlib import Path

from relay.launch.launcher import launch
from relay.run_folder import faults
from relay.run_folder.snapshot import freeze
from relay.spec.run import TaskLook


def run_look(spec: Path, results: Path, output: Path, attempt: int = 1) -> int:
    """Look at a task and write its card to `output` (.json); returns the job's exit status.

    A mistake in the task's file is recorded; a retry (`attempt` > 1) only repeats it in words.
    """
    work = spec.parent
    if (ended := faults.begin(work, "card", attempt)) is not None:
        return ended
    output.unlink(missing_ok=True)
    code = freeze(None, TaskLook.read(spec).file, folder=results / "code")
    arguments = ["--spec", str(spec), "--output", str(output), "--results", str(results)]
    status = launch(spec, "card.process", work, arguments, code)
    return 0 if status == 0 else faults.concluded(work, "card", status)
