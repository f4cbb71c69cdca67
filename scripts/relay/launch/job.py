"""What the jobs of all proofs do alike: start processes on the plan's code, which leave what they found in one file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from relay.launch.launcher import launch
from relay.run_folder.snapshot import freeze, planned
from relay.spec.run import Specification, Training

# Starts the processes of a specification, a role, in a folder, with arguments, on that code; returns their status.
Start = Callable[[Path, str, Path, Sequence[str], Path], int]


def started(
    spec: Path,
    role: str,
    results: Path,
    output: Path,
    arguments: Sequence[str],
    *,
    strategy_file: Path | None = None,
    start: Start = launch,
) -> int:
    """Start the role's processes, which write `output`, in its folder; returns their status.

    What an earlier attempt wrote is removed. Raises UserError where the strategy's file cannot be read.
    """
    output.unlink(missing_ok=True)
    proof, folder = Specification.read(spec), results / "code"
    assert isinstance(proof, Training)
    name = planned(folder, proof).get("code")
    code = folder / name if name else freeze(strategy_file, proof.task.file, folder=folder)
    return start(spec, role, output.parent, ["--spec", str(spec), "--output", str(output), *arguments], code)
