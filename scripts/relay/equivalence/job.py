"""The jobs of the equivalence stage, around the processes that train: a reference, and a gate's verdict.

Where jobs wait for each other, the processes of one also judge further gates. Imports no torch: the driver asks.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from relay.base import ending
from relay.base.ending import Ending
from relay.base.errors import EndedItself, UserError
from relay.base.files import read_json, read_json_or, write_json
from relay.chain.signals import SIGNALS
from relay.datasets import verified
from relay.equivalence.along import completed, source, unjudged
from relay.equivalence.verdict import (
    ALONG,
    CANNOT_RUN,
    FAULTED,
    UNFINISHED,
    Verdict,
    cannot_run,
    failed_at,
    refusing,
)
from relay.launch.launcher import Start, launch, started
from relay.run_folder import faults
from relay.run_folder.faults import Fault
from relay.run_folder.known_faults import Kind
from relay.run_folder.places import dataset_folder
from relay.run_folder.verdicts import all_problems
from relay.spec.job import Job
from relay.spec.run import Gate, Training

# Faults that a strategy may have caused, or others beside it.
BLAMED = (Kind.DEVICE, Kind.MEMORY, Kind.HANG)
TWICE = ", and failed twice, the second time alone"
WITHOUT_A_WORD = "its processes were killed, or crashed without a word"


def run_reference(spec: Path, results: Path, output: Path, attempt: int = 1, start: Start = launch) -> int:
    """Train a reference and write it to `output` (.pt); returns the job's exit status.

    A fault of the program's own is recorded; a retry (`attempt` > 1) only repeats it in words.
    """
    if (ended := faults.begin(output.parent, "reference", attempt)) is not None:
        return ended
    status = _started(spec, "equivalence.reference", results, output, start=start)
    return faults.concluded(output.parent, "reference", status) if status != 0 else 0


def run_gate(
    spec: Path,
    reference: Path,
    results: Path,
    output: Path,
    attempt: int = 1,
    start: Start = launch,
    beside: Mapping[Path, Path] = MappingProxyType({}),
) -> int:
    """Judge a strategy and write `verdict.json`; returns the job's exit status. `start` starts its processes.

    `beside` are the specifications of gates of the same shape, whose jobs are to follow, each with its reference. The
    same processes judge them after this one, and what they pass is kept for their jobs. A gate that fails there is
    judged again by its own job: what others have left in the processes does not count against it.

    A strategy that fails in the gate has not shown that it computes the same training: that is its verdict. A fault
    that others may have caused (of a GPU, of memory, a killed process) has shown nothing: the job ends as interrupted,
    and a retry (`attempt` > 1) judges this gate alone. Only what fails there again is the strategy's.
    A user's mistake fails the job, and a retry only repeats it in words.
    """
    if (ended := faults.begin(output.parent, "gate", attempt)) is not None:
        return ended
    if verdict := read_json_or(output.parent / ALONG, None):
        return _concluded(output, verdict)
    unfinished, noted = output.parent / UNFINISHED, output.parent / FAULTED
    unfinished.unlink(missing_ok=True)
    if attempt == 1:
        noted.unlink(missing_ok=True)
    others = unjudged(beside, results, attempt)
    along = map(str, [path for pair in others.items() for path in pair])
    arguments = ["--reference", str(reference), "--beside", *along]
    status = _started(spec, "equivalence.gate", results, output, *arguments, start=start)
    run = Gate.read(spec)
    if completed(others, results):  # its own verdict was complete before
        if status != 0:
            print("its processes ended in a further gate, which its own job judges again", flush=True)
            faults.forget(output.parent)
    elif status != 0:  # what ended badly has proven nothing, whatever it wrote before
        output.unlink(missing_ok=True)
    verdict = read_json(output)
    if verdict is None:
        if status == 0:  # nobody has killed them
            faults.record(output.parent, EndedItself("its processes ended by themselves in the middle of their work"))
        fault = faults.collect(output.parent)
        if no_verdict := _not_the_strategys(spec, fault, f"gate {run.id}", status, noted):
            return ending.say(no_verdict)
        if noted.exists() or not fault:
            why = fault.error if fault else WITHOUT_A_WORD
            problem = f"{CANNOT_RUN}{TWICE if noted.exists() else ''}: {why}"
        else:
            problem = cannot_run(fault, run.task.file)
        before = read_json(unfinished)  # what it has shown before an own batch
        verdict = failed_at(before, problem) if before else Verdict(run.id, problems=[problem]).as_dict()
    for left in (unfinished, noted):
        left.unlink(missing_ok=True)
    return _concluded(output, verdict | source(run, results))


def _started(spec: Path, role: str, results: Path, output: Path, *extra: str, start: Start) -> int:
    """Start the role's processes on the run's dataset, with these arguments; returns their status."""
    run = Training.read(spec)
    dataset = dataset_folder(results, run.dataset)
    try:
        verified.check(dataset)
    except UserError as error:  # recorded, so that a retry does not try it again
        output.unlink(missing_ok=True)
        faults.record(output.parent, error)
        return 1
    file = Path(run.strategy.file) if run.strategy.file else None  # the reference knows nothing of strategies
    arguments = ["--dataset", str(dataset), *extra]
    return started(spec, role, results, output, arguments, strategy_file=file, start=start)


def _not_the_strategys(spec: Path, fault: Fault | None, what: str, status: int, noted: Path) -> Ending | None:
    """How a gate's job ends whose fault tells nothing of the strategy; None where the strategy is to blame.

    What others may have caused is `noted` the first time. A second time there were no others: a hang stays a fault.
    """
    outcome = faults.outcome(fault, what, status)
    row = fault.row if fault else None
    if fault is None:  # on a cluster, Slurm may have ended the processes
        blamed = Job.read(spec) is None and -status not in SIGNALS
    elif row:
        blamed = row.kind in BLAMED
    elif fault.mistake:  # a missing dataset, say
        blamed = False
    else:
        return None
    if not blamed:
        return outcome
    if noted.exists() and row and row.kind is Kind.HANG:  # whoever waits has computed nothing else
        return replace(outcome, status=ending.FAULT, what=f"{outcome.what}{TWICE}")
    faults.forget(noted.parent)  # else the retry would only repeat it in words
    if noted.exists():
        return None
    write_json(noted, asdict(fault) if fault else None)
    return replace(outcome, status=ending.INTERRUPTED)


def _concluded(output: Path, verdict: dict[str, Any]) -> int:
    """Write a gate's verdict and tell it; the job's exit status."""
    write_json(output, verdict)
    (output.parent / ALONG).unlink(missing_ok=True)
    conclusion = "equivalent" if verdict["equivalent"] else refusing(all_problems(verdict))
    if why := verdict.get("unprovable"):
        conclusion = f"not proven, because {why}"
    print(f"gate {verdict['gate']}: {conclusion}")
    return 0
