"""The jobs of the equivalence stage, around the processes that train: a reference, and a gate's verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from relay.base import ending
from relay.base.errors import EndedItself, UserError
from relay.base.files import read_json, write_json_with_digest
from relay.datasets import verified
from relay.equivalence.verdict import UNFINISHED, Verdict, all_problems, failed_at
from relay.launch.launcher import launch
from relay.run_folder import faults
from relay.run_folder.places import dataset_folder
from relay.run_folder.snapshot import freeze
from relay.spec.identity import source_digest, strategy_sources
from relay.spec.run import Gate, Training

# Starts the processes of a specification, a role, in a folder, with arguments, on that code; returns their status.
Start = Callable[[Path, str, Path, Sequence[str], Path], int]


def _launch(spec: Path, role: str, results: Path, output: Path, *extra: str, start: Start = launch) -> int:
    """Start the role's processes on today's code; returns their status."""
    run = Training.read(spec)
    output.unlink(missing_ok=True)
    strategy_file = Path(run.strategy.file) if run.strategy.file else None  # the reference knows nothing of strategies
    code = freeze(strategy_file, results / "code")
    dataset = dataset_folder(results, run.dataset)
    try:
        verified.check(dataset)
    except UserError as error:  # recorded, so that a retry does not try it again
        faults.record(output.parent, error)
        return 1
    arguments = ["--spec", str(spec), "--dataset", str(dataset), "--output", str(output), *extra]
    return start(spec, role, output.parent, arguments, code)


def run_reference(spec: Path, results: Path, output: Path, attempt: int = 1) -> int:
    """Train a reference and write it to `output` (.pt); returns the job's exit status.

    A fault of the program's own is recorded; a retry (`attempt` > 1) only repeats it in words.
    """
    if (ended := faults.begin(output.parent, "reference", attempt)) is not None:
        return ended
    status = _launch(spec, "equivalence.reference", results, output)
    return 0 if status == 0 else faults.concluded(output.parent, "reference", status)


def run_gate(spec: Path, reference: Path, results: Path, output: Path, attempt: int = 1, start: Start = launch) -> int:
    """Judge a strategy and write `verdict.json`; returns the job's exit status. `start` starts its processes.

    A strategy that fails in the gate has not shown that it computes the same training: that is its verdict. Processes
    that were killed from outside, or that aborted at their end, have shown nothing: that is worth a retry. A user's
    mistake fails the job, and a retry (`attempt` > 1) only repeats it in words.
    """
    if (ended := faults.begin(output.parent, "gate", attempt)) is not None:
        return ended
    unfinished = output.parent / UNFINISHED
    unfinished.unlink(missing_ok=True)
    status = _launch(spec, "equivalence.gate", results, output, "--reference", str(reference), start=start)
    run = Gate.read(spec)
    verdict = read_json(output)
    if status != 0:  # what ended badly has proven nothing, whatever it wrote before
        output.unlink(missing_ok=True)
        verdict = None
    if verdict is None:
        if status == 0:  # nobody has killed them
            faults.record(output.parent, EndedItself("its processes ended by themselves in the middle of their work"))
        fault = faults.collect(output.parent)
        if fault is None or faults.again(fault):
            return ending.say(faults.outcome(fault, f"gate {run.id}", status))
        if fault["mistake"]:  # a missing dataset, say: it tells nothing of the strategy
            return ending.fault(f"gate {run.id}: {fault['error']}")
        verdict = _failed(run, read_json(unfinished), fault["error"])
    unfinished.unlink(missing_ok=True)
    verdict["strategy_source"] = source_digest(strategy_sources(Path(run.strategy.file)))
    write_json_with_digest(output, verdict)
    found = "equivalent" if verdict["equivalent"] else "NOT equivalent: " + "; ".join(all_problems(verdict))
    print(f"gate {run.id}: {found}")
    return 0


def _failed(run: Gate, unfinished: dict[str, Any] | None, error: str) -> dict[str, Any]:
    """The verdict of a strategy that failed in the gate: at an own batch, where `unfinished` tells of one."""
    if unfinished:
        return failed_at(unfinished, error)
    problems = [f"the strategy failed in the gate: {error}"]
    return Verdict(run.id, problems=problems).as_dict()
